"""Dual numbers on their way from one stage to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from freewheel.stage import flatten, memory, tensors_among, unflatten
from freewheel.tangents._compiled_pass import SplitDuals


class Dual(NamedTuple):
    """What a stage passes on: activations, and for each tangent theirs (None for a leaf that has none)."""

    values: Any
    tangents: list[list[Tensor | None]]


class Handover:
    """Gives the next stage tensors that are its alone, so that it may edit them.

    What shares memory with something that this stage keeps, or that is the user's, is copied. Whether there is such a
    thing is found out in the first forward of a run.

    Args:
        first: Whether the stage is the first, whose input is the user's or a copy in its place.
    """

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._shares = True  # whether the module passes on memory that it keeps, as its first forward shows
        self._borrowed: set[int] = set()  # memory of the input that was forwarded last

    def borrow(self, leaves: Sequence[Any]) -> None:
        """Remembers where the first stage's input lies."""
        if self._shares and self._first:
            self._borrowed |= memory(leaves)

    def passed_on(self, out: Sequence[SplitDuals], kept: Callable[[], Sequence[Any]]) -> Dual:
        """What the next stage gets, from the passes of all tangents; `kept` tells what this stage holds on to."""
        values, tangents = out[0][0], [o for _, o in out]
        if not self._shares:
            return Dual(values, tangents)
        taken = memory(kept()) | self._borrowed
        self._borrowed = set()
        leaves, shape = flatten(values)
        shared = [not taken.isdisjoint(memory([leaf])) for leaf in leaves]
        self._shares = any(shared)
        own = [leaf.clone() if copied else leaf for leaf, copied in zip(leaves, shared)]
        theirs = [
            [o.clone() if copied and o is not None else o for o, copied in zip(each, shared)] for each in tangents
        ]
        return Dual(unflatten(own, shape), theirs)


def split_duals(tree: Any) -> tuple[Any, list[Tensor | None]]:
    """A tree without its tangents, and the tangents of its leaves."""
    leaves, shape = flatten(tree)
    if any(t.requires_grad for t in tensors_among(leaves)):
        # Parameters take part without their own requires_grad, so one of them went past the dual pass.
        raise TypeError(
            "a parameter was used where its tangent cannot be seen, in an autograd.Function or a scripted module: give "
            "the function parameter * 1, and the trainer modules that are not scripted"
        )
    pairs = [unpack_dual(t) if isinstance(t, Tensor) else (t, None) for t in leaves]
    return unflatten([value for value, _ in pairs], shape), [tangent for _, tangent in pairs]
