"""Drawing tangents late in a compiled pass, so that only those of about one layer are in memory.

The compiler may compute what depends on no activation at any time, and does so first: the tangents of all weights would
be in memory during the widest layer. So the seed of a large tangent gets a dependency on the latest product before its
first use, which adds 0 to it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

_LARGE = 2**14  # elements; smaller ones may be drawn within other kernels

aten = torch.ops.aten
_PRODUCTS = (aten.convolution.default, aten.mm.default, aten.addmm.default, aten.bmm.default)


def draw_late(graph: Graph, given: Collection[Node]) -> None:
    """Move what is computed from `given` alone to where it is needed, and tie large draws to that place.

    Args:
        graph: The traced pass; it is changed.
        given: The inputs that tangents are drawn from.
    """
    _sink(graph, given)
    _tie(graph)


def _sink(graph: Graph, given: Collection[Node]) -> None:
    free: set[Node] = set()  # not computed from activations or weights
    for node in graph.nodes:
        if node.op == "call_function" and all(each in free or each in given for each in node.all_input_nodes):
            free.add(node)

    if any(each in free for node in graph.nodes for each in _changed(node)):
        return  # the order matters

    def place(node: Node, before: Node) -> None:
        for each in node.all_input_nodes:
            if each in free:
                free.remove(each)
                place(each, before)
                before.prepend(each)

    for node in list(graph.nodes):
        if node not in free:
            place(node, node)


def _changed(node: Node) -> list[Any]:
    """Return the arguments that an operation changes in place."""
    if not isinstance(node.target, OpOverload):
        return []
    return [
        node.args[i]
        for i, each in enumerate(node.target._schema.arguments[: len(node.args)])
        if each.alias_info is not None and each.alias_info.is_write
    ]


def _tie(graph: Graph) -> None:
    from torch._inductor import inductor_prims  # loads the compiler

    product: Node | None = None
    for node in list(graph.nodes):
        if node.target in _PRODUCTS:
            product = node
        elif node.target is inductor_prims.random and product is not None and prod(node.args[0]) >= _LARGE:
            with graph.inserting_before(node):
                node.update_arg(1, graph.call_function(aten.add.Tensor, (node.args[1], _zero(graph, product))))


def _zero(graph: Graph, product: Node) -> Node:
    """Return a 0 that is computed from an element of a product, be it NaN or not."""
    element = graph.call_function(aten.as_strided.default, (product, [], [], 0))
    differs = graph.call_function(aten.ne.Tensor, (element, element))
    same = graph.call_function(aten.eq.Tensor, (element, element))
    both = graph.call_function(aten.logical_and.default, (differs, same))
    return graph.call_function(aten._to_copy.default, (both,), {"dtype": torch.int64})
