"""Tensors that stand in for those of a module for a while; another thread that reads the module gets hold of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

StandIns = tuple[Sequence[Tensor], Sequence[Tensor]]  # tensors, and those that they stand in for

_present: dict[object, StandIns] = {}
_noted: dict[object, list[StandIns]] = {}


@contextmanager
def standing_in(tensors: Sequence[Tensor], originals: Sequence[Tensor]) -> Iterator[None]:
    """A context in which modules hold some tensors in place of others."""
    key, stand_ins = object(), (tensors, originals)
    _present[key] = stand_ins
    for found in list(_noted.values()):
        found.append(stand_ins)
    try:
        yield
    finally:
        del _present[key]


@contextmanager
def noted_stand_ins() -> Iterator[list[StandIns]]:
    """A context that notes, and so keeps, all tensors that stand in for others inside it, in any thread.

    Example:
        >>> import torch
        >>> weight, copy, other = torch.zeros(3, 1)
        >>> with standing_in([copy], [weight]), noted_stand_ins() as found:
        ...     with standing_in([other], [weight]):
        ...         pass
        >>> [tensors[0] is each for (tensors, _), each in zip(found, (copy, other), strict=True)]
        [True, True]
    """
    key, found = object(), list[StandIns]()
    _noted[key] = found  # first: what comes into place from now on is noted twice rather than never
    found += list(_present.values())
    try:
        yield found
    finally:
        del _noted[key]
