"""What kind of value each node of a graph has: one tensor, several, or none.

With an example the graph is run once and looked at. Without one, the kinds follow from the names of the
calls, and what cannot be told is marked unsure.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from freewheel.split._modes import when
from freewheel.split._trace import Traced
from freewheel.split._tree import map_tensors, tensors
from freewheel.split._undisturbed import undisturbed


@dataclass(frozen=True)
class OneTensor:
    """A tensor with so many elements (1 if unknown)."""

    elements: int = 1


@dataclass(frozen=True)
class Plain:
    """A value without tensors: a number, a shape, a device, None."""

    value: Any = None


@dataclass(frozen=True)
class Unsure:
    """Possibly several tensors; only an example can tell."""


Layout = OneTensor | Plain | Unsure | tuple | list | dict  # containers hold layouts, one tensor at least


@dataclass
class Values:
    """What was found out about the nodes.

    Attributes:
        layouts: The layout of each node's value.
        writes: Pairs (value, writer): the call ``writer`` changes the tensor ``value`` in place.
        output: What the graph gave for the example, None without one.
    """

    layouts: dict[fx.Node, Layout] = field(default_factory=dict)
    writes: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    output: Any = None


def leaves(layout: Layout, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], OneTensor]]:
    """The tensors of a layout, each with the indices that lead to it.

    Example:
        >>> list(leaves((OneTensor(4), [Plain(), OneTensor(2)])))
        [((0,), OneTensor(elements=4)), ((1, 1), OneTensor(elements=2))]
    """
    if isinstance(layout, OneTensor):
        yield path, layout
    elif isinstance(layout, tuple | list):
        for i, part in enumerate(layout):
            yield from leaves(part, (*path, i))
    elif isinstance(layout, dict):
        for key, part in layout.items():
            yield from leaves(part, (*path, key))


def observe(traced: Traced, example: Any) -> Values:
    """Run the graph once on the example, in training mode, and look at every value."""
    found = Values()
    values: dict[fx.Node, Any] = {}
    with undisturbed(traced.model), torch.no_grad():
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = map_tensors(lambda t: t.detach().clone(), example)
            elif node.op == "output":
                found.output = fx.map_arg(node.args[0], values.__getitem__)
                break
            else:
                before = [(n, [t._version for t in tensors(v)]) for n, v in values.items()]
                values[node] = traced.run(node, values.__getitem__)
                found.writes += [(n, node) for n, seen in before if seen != [t._version for t in tensors(values[n])]]
            found.layouts[node] = _layout(values[node])
    return found


def infer(traced: Traced) -> Values:
    """Tell the kinds from the names of the calls alone."""
    found = Values()
    for node in traced.graph.nodes:
        if node.op == "output":
            break
        found.layouts[node] = _inferred(traced, node, found.layouts)
        target = _written(traced, node)
        while isinstance(target, fx.Node):
            found.writes.append((target, node))
            target = target.all_input_nodes[0] if _is_view(traced, target) else None
    return found


def _layout(value: Any) -> Layout:
    if isinstance(value, Tensor):
        return OneTensor(value.numel())
    if not any(True for _ in tensors(value)):
        return Plain(value)
    if isinstance(value, dict):
        return {key: _layout(part) for key, part in value.items()}
    parts = [_layout(part) for part in value]
    return parts if isinstance(value, list) else tuple(parts)


# What names say, for graphs without an example.

_PLAIN_METHODS = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device",
    "is_floating_point", "is_complex", "is_contiguous", "storage_offset", "item", "tolist",
}  # fmt: skip
_PLAIN_ATTRIBUTES = {
    "shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "layout", "itemsize", "nbytes",
}  # fmt: skip
_SEVERAL = {
    "chunk", "unsafe_chunk", "split", "unsafe_split", "split_with_sizes", "tensor_split", "hsplit",
    "vsplit", "dsplit", "unbind", "meshgrid", "broadcast_tensors", "max", "min", "aminmax", "median",
    "nanmedian", "mode", "sort", "msort", "topk", "kthvalue", "cummax", "cummin", "unique",
    "unique_consecutive", "where", "nonzero", "var_mean", "std_mean", "frexp", "slogdet", "svd", "qr",
    "lu", "eig", "eigh", "lstsq", "multi_head_attention_forward",
}  # fmt: skip
_VIEWS = {
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose",
    "permute", "t", "swapaxes", "movedim", "expand", "narrow", "select", "contiguous", "to", "type",
    "float", "detach", "chunk", "split", "unbind", "getitem", "getattr",
}  # fmt: skip
_SEVERAL_MODULES = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention, nn.AdaptiveLogSoftmaxWithLoss)
_IN_PLACE_OPERATORS = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.ipow, operator.imatmul, operator.iand, operator.ior, operator.ixor, operator.setitem,
}  # fmt: skip


def _inferred(traced: Traced, node: fx.Node, layouts: dict[fx.Node, Layout]) -> Layout:
    inputs = [layouts[n] for n in node.all_input_nodes]
    if node.op == "placeholder":
        return OneTensor()
    if node.op == "get_attr":
        value = traced.fetch(str(node.target))
        return OneTensor() if isinstance(value, Tensor) else Plain(value)
    if node.op == "call_module":
        module = traced.fetch(str(node.target))
        known = type(module).__module__.startswith("torch.nn") and not isinstance(module, _SEVERAL_MODULES)
        return OneTensor() if known or traced.sequential else Unsure()
    name = _name(node)
    if name == "getattr" and node.args[1] in _PLAIN_ATTRIBUTES:
        return Plain()
    if name in ("getitem", "getattr"):
        return inputs[0]
    if name in _PLAIN_METHODS or node.target is when:
        return Plain()
    if node.op == "call_method" and isinstance(inputs[0], Plain):
        return Plain()
    home = getattr(node.target, "__module__", None) or "torch"
    if node.op == "call_function" and home.split(".")[0] not in ("torch", "_operator", "builtins", "math"):
        return Unsure()
    if name in _SEVERAL or Unsure() in inputs:
        return Unsure()
    if inputs and all(isinstance(i, Plain) for i in inputs) and not home.startswith("torch"):
        return Plain()
    return OneTensor()


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _written(traced: Traced, node: fx.Node) -> Any:
    """The node whose tensor this one changes in place, if its name says so."""
    if not node.args:
        return None
    name = _name(node)
    in_place = (
        vars(traced.fetch(str(node.target))).get("inplace") is True
        if node.op == "call_module"
        else node.op in ("call_function", "call_method")
        and (
            node.kwargs.get("inplace") is True
            or node.target in _IN_PLACE_OPERATORS
            or (name.endswith("_") and not name.endswith("__"))
        )
    )
    return node.args[0] if in_place else None


def _is_view(traced: Traced, node: fx.Node) -> bool:
    """Whether the node may share memory with its first input."""
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        views = nn.Flatten | nn.Unflatten | nn.Identity
        return _written(traced, node) is not None or isinstance(traced.fetch(str(node.target)), views)
    return _name(node) in _VIEWS or _written(traced, node) is not None
