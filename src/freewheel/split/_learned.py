"""Which values depend on what is learned; the others, such as masks and the input itself, need no gradient.

A stage asks for the gradient of everything that it receives. For a value that needs none that would be wasted work, and
PyTorch may compute other calls otherwise, such as attention with a mask that needs one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from freewheel.split._line import Line
from freewheel.split._trace import Traced
from freewheel.split._tree import tensors

_PURE = ("torch", "_operator", "builtins", "math", "freewheel")


def learned(line: Line) -> set[fx.Node]:
    """The nodes whose value depends on a parameter, or may do so."""
    found: set[fx.Node] = set()
    for node in line.traced.graph.nodes:
        if node in line.structures and line.structures[node].plain:
            continue  # a shape or a type, for example
        if not found.isdisjoint(node.all_input_nodes) or _has_parameters(line.traced, node):
            found.add(node)
    return found


def _has_parameters(traced: Traced, node: fx.Node) -> bool:
    if node.op == "call_function":
        return not (getattr(node.target, "__module__", None) or "torch").startswith(_PURE)
    if node.op in ("call_module", "get_attr"):
        value: Any = traced.fetch(str(node.target))
        if isinstance(value, nn.Module):  # one that is not of PyTorch may hide parameters
            return not type(value).__module__.startswith("torch.nn") or any(True for _ in value.parameters())
        return any(_is_learned(t) for t in tensors(value))
    return False


def _is_learned(tensor: Tensor) -> bool:
    return tensor.requires_grad or isinstance(tensor, nn.Parameter)
