"""Reading batches: which parts of what a loader gives are input and target, as tensors that are the run's own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate

from freewheel._config import Part, Parts, RunConfig
from freewheel._trees import tensors_of
from freewheel.data import FileLoader, TensorLoader

PAIRS = "it must give pairs (input, target), or say which parts are which with inputs= and targets="


class Batch(NamedTuple):
    """One batch: its number, the input of the first stage, the target of the last, and its number of samples.

    `length` is the size of the input's second dimension, the number of time steps if it has any; `epoch` is that of
    this fit.
    """

    number: int
    x: Any
    target: Any
    size: int
    length: int | None
    cut: bool  # whether an epoch ends with it
    epoch: int = 0


@dataclass(frozen=True)
class Reader:
    """Makes batches of what a loader gives; see `RunConfig` for the options.

    The number of samples is that of the target, where it is a tensor, else that of the input. Unless the loader is
    known to give new memory each time, tensors are copied: it may refill a buffer while a batch is in flight. Where
    `pins`, those of the CPU are in pinned memory, from which a GPU copies while Python goes on.
    """

    inputs: Parts | None = None
    targets: Parts | None = None
    dim: int = 0  # of the samples
    copies: bool = True
    pins: bool = False

    @classmethod
    def of(cls, config: RunConfig, loader: Iterable[Any] | None = None, *, pins: bool = False) -> Reader:
        """The reader for a loader; without one it copies whatever it reads."""
        return cls(config.inputs, config.targets, config.batch_dim, copies=not gives_new_memory(loader), pins=pins)

    def batch(self, number: int, item: Any) -> Batch:
        """Make a batch of input and target."""
        x, target = (self._own(each, number) for each in self._pair(number, item))
        return self._sized(number, x, target)

    def input(self, number: int, item: Any) -> Batch:
        """Make a batch without a target; an item that has no parts is the input."""
        if self.inputs is not None:
            x = _chosen("inputs", self.inputs, item, number)
        else:
            x = item[0] if isinstance(item, (tuple, list)) and item else item
        return self._sized(number, self._own(x, number), None)

    def _sized(self, number: int, x: Any, target: Any) -> Batch:
        tensors = tensors_of(x)
        if not tensors:
            raise TypeError(f"loader gave an input without any tensor as batch {number} ({type(x).__name__})")
        counted = target if isinstance(target, Tensor) and target.dim() else tensors[0]
        size = _size(counted, self.dim)
        if size == 0 or _size(tensors[0], self.dim) == 0:
            raise ValueError(f"loader gave an empty batch as batch {number}: drop it")
        length = tensors[0].shape[1] if tensors[0].dim() > 1 else None
        return Batch(number, x, target, size, length, cut=False)

    def _pair(self, number: int, item: Any) -> tuple[Any, Any]:
        if self.inputs is not None:
            assert self.targets is not None
            return _chosen("inputs", self.inputs, item, number), _chosen("targets", self.targets, item, number)
        sized = isinstance(item, (tuple, list, Mapping))
        if isinstance(item, Mapping) or not sized or len(item) != 2:
            kind = type(item).__name__
            kind += f" with {', '.join(map(repr, item))}" if isinstance(item, Mapping) else ""
            kind += f" of length {len(item)}" if isinstance(item, (tuple, list)) else ""
            raise TypeError(f"loader gave a {kind} as batch {number}: {PAIRS}")
        return item[0], item[1]

    def _own(self, tree: Any, number: int) -> Any:
        if isinstance(tree, Tensor):  # the usual case, without the machinery of trees
            return self._own_leaf(tree, number)
        plain = all(isinstance(leaf, Tensor) for leaf in tree_leaves(tree))
        if plain and not self.copies and not self.pins and not any(leaf.requires_grad for leaf in tree_leaves(tree)):
            return tree
        return tree_map(lambda leaf: self._own_leaf(leaf, number), tree)

    def _own_leaf(self, leaf: Any, number: int) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                raise ValueError(
                    f"loader gave a tensor that requires a gradient as batch {number}: nothing before the first stage "
                    "is trained; detach() it, or make what it comes from part of the model"
                )
            return self._own_tensor(leaf)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(leaf, numpy.ndarray) and leaf.dtype.kind in "biufc":
            made = torch.from_numpy(leaf.copy())
            return _pinned(made) if self.pins else made
        return leaf

    def _own_tensor(self, tensor: Tensor) -> Tensor:
        if not self.copies and not (self.pins and can_be_pinned(tensor)):
            return tensor
        pinned = is_pinned(tensor)
        if pinned and not self.copies:
            return tensor
        return _pinned(tensor) if pinned or (self.pins and can_be_pinned(tensor)) else tensor.clone()


def gives_new_memory(loader: Iterable[Any] | None) -> bool:
    """Whether a loader is known never to refill what it gave: a list, and one that stacks samples anew.

    Example:
        >>> gives_new_memory([]), gives_new_memory(DataLoader([0.0, 1.0])), gives_new_memory(iter([]))
        (True, True, False)
    """
    if type(loader) is DataLoader:
        return loader.collate_fn is default_collate
    return type(loader) in (list, tuple, TensorLoader, FileLoader)


def can_be_pinned(tensor: Tensor) -> bool:
    """Whether a tensor is an ordinary one of the CPU."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided


def is_pinned(tensor: Tensor) -> bool:
    """Whether a GPU can copy a tensor while Python goes on."""
    return can_be_pinned(tensor) and torch.cuda.is_available() and tensor.is_pinned()


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory; torch reuses that memory once the GPU has copied it."""
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _size(tensor: Tensor, dim: int) -> int:
    """The number of samples: the size along `dim`, or of the first dimension of a tensor that has no such one."""
    return tensor.shape[dim if tensor.dim() > dim else 0] if tensor.dim() else 1


def _chosen(option: str, parts: Parts, item: Any, number: int) -> Any:
    """The part of an item that has this key or position; several as a tuple."""
    if isinstance(parts, (str, int)):
        return _part(option, parts, item, number)
    return tuple(_part(option, part, item, number) for part in parts)


def _part(option: str, part: Part, item: Any, number: int) -> Any:
    try:
        return item[part]
    except (KeyError, IndexError, TypeError):
        held = f" with {', '.join(map(repr, item))}" if isinstance(item, Mapping) else ""
        held += f" of length {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise ValueError(
            f"{option}={part!r}: loader gave a {type(item).__name__}{held} as batch {number}, which has no such part"
        ) from None
