"""Places in memory that CUDA graphs read from and write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel.runtime._layout import span
from freewheel.stage import flatten, unflatten

SPARSE = 16  # times the elements that a tensor has: one that spans more memory is not captured


class Recorded:
    """What captured functions have returned: the same objects for every batch of a slot."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """Add a result and all it consists of."""
        self._known[id(value)] = value
        if isinstance(value, (list, tuple)):
            for child in value:
                self.add(child)

    def remove(self, value: Any) -> list[Any]:
        """Forget a result; return it and all it consists of."""
        found = [self._known.pop(id(value), value)]
        if isinstance(value, (list, tuple)):
            for child in value:
                found += self.remove(child)
        return found

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._known


class Form(NamedTuple):
    """The form of a tree: its structure, and of each leaf all but the contents of a tensor."""

    shape: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, tree: Any) -> Form:
        """Return the form of a tree."""
        if isinstance(tree, Tensor):
            return cls(Tensor, (_form(tree),))
        leaves, shape = flatten(tree)
        return cls(shape, tuple([_form(leaf) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves]))


def _form(tensor: Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype


class FixedTree:
    """A tree of tensors at a fixed place on the device, to which others of its form are copied.

    Args:
        tree: The first one.
        device: The device.
        recorded: Whether the tree itself is at a fixed place.
    """

    def __init__(self, tree: Any, device: torch.device, *, recorded: bool) -> None:
        self.form, self.tree = Form.of(tree), tree
        if not recorded:
            leaves, shape = flatten(tree)
            self.tree = unflatten([_placed(t, device) if isinstance(t, Tensor) else t for t in leaves], shape)
        self._leaves = flatten(self.tree)[0]
        if not recorded:
            self.copy(tree)  # for the call before the capture

    def takes(self, tree: Any) -> bool:
        """Whether a tree has this form."""
        return Form.of(tree) == self.form

    def copy(self, tree: Any) -> None:
        """Copy a tree of this form, on the stream of the stage."""
        for place, leaf in zip(self._leaves, flatten(tree)[0]):
            if isinstance(place, Tensor):
                place.copy_(leaf, non_blocking=leaf.is_cuda or not leaf.is_pinned())


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has memory for each of its elements, and little more."""
    if tensor.layout is not torch.strided or any(n > 1 and not s for n, s in zip(tensor.shape, tensor.stride())):
        return False
    return span(tensor.shape, tensor.stride()) <= SPARSE * max(1, tensor.numel())


def forms_of(fixed: Sequence[FixedTree]) -> tuple[Form, ...]:
    """Return the form of each tree."""
    return tuple(each.form for each in fixed)
