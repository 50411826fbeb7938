"""Messages as bytes: a layout, as text, and the contents of the tensors.

A layout holds everything of a message but the contents of its tensors: structure, shapes, strides, types, and plain
values. It is sent once, and again only when it changes. It is JSON: nothing is pickled, nothing received is executed.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel._trees import children_of, map_tensors, rebuild, tensors_of
from freewheel.tangents import Dual

ALIGNMENT = 64
_NAMED: dict[str, Any] = {"Dual": Dual}  # named tuples that may travel
_MAPS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
# Plain values, and what makes them of subclasses such as enumerations.
_PLAIN: Any = ((NoneType, lambda none: None), (bool, bool), (str, str.__str__), (int, int), (float, float))

Node = tuple[Any, ...]


class Slot(NamedTuple):
    """The place of a tensor in a packet."""

    start: int
    dtype: torch.dtype
    span: int  # elements from its first to its last, gaps included
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Layout:
    """The place of each tensor in a packet, and how the tree is rebuilt.

    Example:
        >>> node, tensors = described({"h": torch.ones(2, 3), "ids": [1, None]})
        >>> layout = Layout.read(Layout(node).text)
        >>> packet = torch.empty(layout.size, dtype=torch.uint8)
        >>> layout.write(packet, tensors)
        >>> layout.take(packet)
        {'h': tensor([[1., 1., 1.],
                [1., 1., 1.]]), 'ids': [1, None]}
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._slots: list[Slot] = []
        end = 0
        for dtype, shape, stride in _leaves(node):
            kind = getattr(torch, dtype)
            count = span(shape, stride)
            self._slots.append(Slot(end, kind, count, tuple(shape), tuple(stride)))
            end += -(-count * kind.itemsize // ALIGNMENT) * ALIGNMENT
        self.size = end

    @property
    def text(self) -> str:
        """The layout as JSON."""
        return json.dumps(self.node)

    @classmethod
    def read(cls, text: str) -> Layout:
        """The layout of a JSON text."""
        return cls(_as_tuples(json.loads(text)))

    def views(self, packet: Tensor) -> list[Tensor]:
        """The tensors of a packet of bytes, each flat."""
        ends = [slot.start + slot.span * slot.dtype.itemsize for slot in self._slots]
        return [packet[slot.start : end].view(slot.dtype) for slot, end in zip(self._slots, ends)]

    def write(self, packet: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy tensors into a packet."""
        fill(self.views(packet), tensors)

    def take(self, packet: Tensor) -> Any:
        """A copy of the tree in a packet."""
        return self.rebuilt(self.views(packet))

    def rebuilt(self, views: Sequence[Tensor]) -> Any:
        """A copy of the tree whose flat tensors these are."""
        pairs = zip(views, self._slots)
        return _built(self.node, iter([v.clone().as_strided(slot.shape, slot.stride) for v, slot in pairs]))


def fill(views: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy tensors into their places in a packet."""
    for view, tensor in zip(views, tensors):
        view.copy_(tensor.detach().as_strided((view.numel(),), (1,), int(tensor.storage_offset())))


def described(tree: Any) -> tuple[Node, list[Tensor]]:
    """The layout of a tree, as nested tuples, and its tensors in order.

    Example:
        >>> described((torch.zeros(2), 3))[0]
        ('tuple', ('tensor', 'float32', (2,), (1,)), ('plain', 3))
    """
    tensors: list[Tensor] = []
    return _described(tree, tensors), tensors


def _described(tree: Any, tensors: list[Tensor]) -> Node:
    if isinstance(tree, Tensor):
        if tree.layout is not torch.strided:
            raise TypeError(f"a {tree.layout} tensor cannot travel between processes: make it dense (to_dense)")
        tensors.append(tree)
        return "tensor", str(tree.dtype).removeprefix("torch."), tuple(tree.shape), tree.stride()
    plain = next((convert for kind, convert in _PLAIN if isinstance(tree, kind)), None)
    if plain is not None:
        return "plain", plain(tree)
    kind = dict if type(tree) is defaultdict else type(tree)
    name = kind.__name__
    if kind in (list, tuple) or _NAMED.get(name) is kind:
        return name, *[_described(child, tensors) for child in tree]
    if _MAPS.get(name) is kind and all(type(key) in (int, str) for key in tree):
        return name, tuple(tree), *[_described(child, tensors) for child in tree.values()]
    found = children_of(tree)
    if found is not None and _is_plain(found[1]):
        return "node", found[:2], *[_described(child, tensors) for child in found[2]]
    raise TypeError(
        f"a {name} cannot travel between processes: pass on tensors, numbers, text, and tuples, lists and dicts of them"
    )


def _built(node: Node, tensors: Iterator[Tensor]) -> Any:
    kind, *children = node
    if kind == "tensor":
        return next(tensors)
    if kind == "plain":
        return children[0]
    if kind == "node":
        (name, context), *values = children
        return rebuild(name, context, [_built(value, tensors) for value in values])
    if kind in _MAPS:
        keys, *values = children
        return _MAPS[kind]({key: _built(value, tensors) for key, value in zip(keys, values)})
    built = [_built(child, tensors) for child in children]
    if kind in _NAMED:
        return _NAMED[kind](*built)
    return built if kind == "list" else tuple(built)


def _leaves(node: Node) -> Iterator[Any]:
    """Type, shape and stride of each tensor, in order."""
    kind, *children = node
    if kind == "tensor":
        yield children
    elif kind != "plain":
        for child in children[1:] if kind in _MAPS or kind == "node" else children:
            yield from _leaves(child)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements from the first to the last of a tensor, gaps included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride))


def _is_plain(value: Any) -> bool:
    """Whether a value is the same after a journey as JSON, lists for tuples aside."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return type(value) in (NoneType, bool, int, float, str)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def compact(tree: Any) -> Any:
    """The same tree; a tensor that is a sparse view of a larger one is copied.

    Every runtime does this to messages, so that all compute on tensors of the same strides.

    Example:
        >>> compact(torch.zeros(4, 100, 3)[:, -1]).stride(), compact(torch.zeros(4, 3).t()).stride()
        ((3, 1), (1, 3))
    """
    for tensor in [tree] if isinstance(tree, Tensor) else tensors_of(tree):
        if _is_sparse(tensor):
            break
    else:
        return tree
    return map_tensors(lambda t: t.contiguous() if _is_sparse(t) else t, tree)


def _is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor is a view of a much larger piece of memory."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return False
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return False
    return span(tensor.shape, tensor.stride()) > 4 * tensor.numel()
