"""One kernel for all counters of a compiled pass: each BatchNorm counts its batches."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def count_together(traced: GraphModule) -> None:
    """Add 1 to all counters at the end of a traced pass, in one operation.

    A counter is an integer that the pass does nothing else with.

    Example:
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> norms = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
        >>> traced = make_fx(norms)(torch.randn(4, 2))
        >>> count_together(traced)
        >>> [str(node.target) for node in traced.graph.nodes if "add" in str(node.target)]
        ['aten._foreach_add_.Scalar']
    """
    held = Counter(id(getattr(traced, str(node.target))) for node in traced.graph.find_nodes(op="get_attr"))
    added = traced.graph.find_nodes(op="call_function", target=aten.add_.Tensor)
    found = [node for node in added if _is_counter(traced, node, held)]
    if len(found) < 2:
        return
    counters = [node.args[0] for node in found]
    for node in found:
        traced.graph.erase_node(node)
    with traced.graph.inserting_before(traced.graph.output_node()):
        traced.graph.call_function(aten._foreach_add_.Scalar, (counters, 1))
    traced.recompile()


def _is_counter(traced: GraphModule, node: Node, held: Counter[int]) -> bool:
    source, *rest = node.args
    if node.users or rest != [1] or node.kwargs or not isinstance(source, Node) or source.op != "get_attr":
        return False
    tensor = getattr(traced, str(source.target))
    single = held[id(tensor)] == 1 and len(source.users) == 1
    return single and isinstance(tensor, Tensor) and not tensor.dim() and not tensor.is_floating_point()
