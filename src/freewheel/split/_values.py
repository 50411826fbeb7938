"""The structure of every node's value, and which nodes write to memory in place.

With an example the graph is run once and observed. Without one, both follow from the names of the calls, and
what these leave open is unknown.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from freewheel.split._modes import when
from freewheel.split._structure import OneTensor, Plain, Structure, Unknown, structure_of
from freewheel.split._trace import Traced
from freewheel.split._transformer import canonical_mask, is_causal_mask, packed
from freewheel.split._tree import holds_tensor, map_tensors, tensors
from freewheel.split._undisturbed import undisturbed


@dataclass
class Values:
    """What is known about the values of the nodes.

    Attributes:
        structures: The structure of each node's value.
        writes: Pairs (value, writer): the call ``writer`` changes the tensor ``value`` in place.
        changed: The ids of the buffers that submodules change, or may change.
        output: The graph's output for the example, None without one.
    """

    structures: dict[fx.Node, Structure] = field(default_factory=dict)
    writes: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    output: Any = None


def observe(traced: Traced, example: Any) -> Values:
    """Run the graph once on the example in training mode and describe every value."""
    found = Values()
    values: dict[fx.Node, Any] = {}
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    sharing: dict[int, list[fx.Node]] = defaultdict(list)  # the nodes whose tensors lie in the same memory
    with undisturbed(traced.model), torch.no_grad():
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                values[node] = map_tensors(lambda t: t.detach().clone(), example)
            elif node.op == "output":
                found.output = fx.map_arg(node.args[0], values.__getitem__)
                break
            else:
                exposed = {n for t in _reachable(traced, node, values) for n in sharing[_memory(t)]}
                before = {n: _versions(values[n]) for n in sorted(exposed, key=order.__getitem__)}
                buffers = _buffers(traced, node)
                values[node] = traced.run(node, values.__getitem__)
                found.changed |= {key for slots, name, key, last in buffers if _state(slots[name]) != (key, last)}
                found.writes += [(n, node) for n, versions in before.items() if versions != _versions(values[n])]
            found.structures[node] = structure_of(values[node])
            for memory in {_memory(t) for t in tensors(values[node])}:
                sharing[memory].append(node)
    return found


def infer(traced: Traced) -> Values:
    """Infer the structures from the names of the calls alone."""
    found = Values()
    for node in traced.graph.nodes:
        if node.op == "output":
            break
        found.structures[node] = _inferred(traced, node, found.structures)
        found.changed |= {key for _, _, key, _ in _buffers(traced, node)}
        target = _write_target(traced, node)
        while isinstance(target, fx.Node):
            found.writes.append((target, node))
            target = target.all_input_nodes[0] if _is_view(traced, target) else None
    return found


def _reachable(traced: Traced, node: fx.Node, values: dict[fx.Node, Any]) -> Iterator[Tensor]:
    """The tensors that a call can write to: its arguments and the state of the module it calls."""
    yield from tensors([values[n] for n in node.all_input_nodes])
    if node.op == "call_module":
        module = traced.fetch(str(node.target))
        yield from tensors([*module.parameters(), *module.buffers()])


def _buffers(traced: Traced, node: fx.Node) -> list[tuple[dict[str, Any], str, int, int]]:
    """The buffers of the submodule that a node calls: each slot, and the buffer's id and version in it."""
    modules = traced.fetch(str(node.target)).modules() if node.op == "call_module" else ()
    slots = [
        (module._buffers, name) for module in modules for name, buffer in module._buffers.items() if buffer is not None
    ]
    return [(buffers, name, *_state(buffers[name])) for buffers, name in slots]


def _state(buffer: Any) -> tuple[int, int]:
    return id(buffer), buffer._version


def _memory(tensor: Tensor) -> int:
    """A number that tensors share if they share memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _versions(value: Any) -> list[int]:
    """How often each tensor has been written to."""
    return [tensor._version for tensor in tensors(value)]


# What names imply, for graphs without an example.

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
_VIEW_NAMES = {
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose",
    "permute", "t", "swapaxes", "movedim", "expand", "narrow", "select", "contiguous", "to", "type",
    "float", "detach", "chunk", "split", "unbind", "getitem", "getattr",
}  # fmt: skip
_VIEW_MODULES = (nn.Flatten, nn.Unflatten, nn.Identity)
_SEVERAL_MODULES = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention, nn.AdaptiveLogSoftmaxWithLoss)
_IN_PLACE_OPERATORS = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.ipow, operator.imatmul, operator.iand, operator.ior, operator.ixor, operator.setitem,
}  # fmt: skip


def _inferred(traced: Traced, node: fx.Node, structures: dict[fx.Node, Structure]) -> Structure:
    inputs = [structures[n] for n in node.all_input_nodes]
    if node.op == "placeholder":
        return OneTensor()
    if node.op == "get_attr":
        value = traced.fetch(str(node.target))
        return OneTensor() if holds_tensor(value) else Plain(value)
    if node.op == "call_module":
        module = traced.fetch(str(node.target))
        known = type(module).__module__.startswith("torch.nn") and not isinstance(module, _SEVERAL_MODULES)
        return OneTensor() if known or traced.sequential else Unknown()
    name = _name(node)
    if name == "getattr" and node.args[1] in _PLAIN_ATTRIBUTES:
        return Plain()
    if name in ("getitem", "getattr"):
        return inputs[0]
    if name in _PLAIN_METHODS or node.target in (when, is_causal_mask):
        return Plain()
    if node.op == "call_method" and inputs[0].plain:
        return Plain()
    if node.target in (canonical_mask, packed):
        return OneTensor()
    home = getattr(node.target, "__module__", None) or "torch"
    if node.op == "call_function" and home.split(".")[0] not in ("torch", "_operator", "builtins", "math"):
        return Unknown()
    if name in _SEVERAL or Unknown() in inputs:
        return Unknown()
    if inputs and all(i.plain for i in inputs) and not home.startswith("torch"):
        return Plain()
    return OneTensor()


def _name(node: fx.Node) -> str:
    """The name of the function, method or module that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


def _write_target(traced: Traced, node: fx.Node) -> Any:
    """The node whose tensor this one changes in place, if its name implies that."""
    if not node.args:
        return None
    if node.op == "call_module":
        in_place = vars(traced.fetch(str(node.target))).get("inplace") is True
    else:
        named = node.target in _IN_PLACE_OPERATORS or (_name(node).endswith("_") and not _name(node).endswith("__"))
        in_place = node.op in ("call_function", "call_method") and (named or node.kwargs.get("inplace") is True)
    return node.args[0] if in_place else None


def _is_view(traced: Traced, node: fx.Node) -> bool:
    """Whether the node may share memory with its first input."""
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        return _write_target(traced, node) is not None or isinstance(traced.fetch(str(node.target)), _VIEW_MODULES)
    return _name(node) in _VIEW_NAMES or _write_target(traced, node) is not None
