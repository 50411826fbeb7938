"""Dual numbers as messages between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from freewheel.stage import flatten, memory, tensors_among, unflatten
from freewheel.tangents._compiled_pass import SplitDuals


class Dual(NamedTuple):
    """The message to the next stage: activations, and their tangents per direction (None for a leaf without one)."""

    values: Any
    tangents: list[list[Tensor | None]]


class AliasGuard:
    """Copies outputs that share memory with this stage or the user, so that the next stage may edit its input.

    The first forward of a run detects whether there are any.

    Args:
        first: Whether the stage is the first, whose input belongs to the user.
    """

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._shares = True  # whether outputs share memory, as detected in the first forward
        self._input_memory: set[int] = set()

    def note_input(self, leaves: Sequence[Any]) -> None:
        """Record the memory of the first stage's input."""
        if self._shares and self._first:
            self._input_memory |= memory(leaves)

    def message(self, out: Sequence[SplitDuals], retained: Callable[[], Sequence[Any]]) -> Dual:
        """Return the message to the next stage; `retained` returns the tensors that this stage retains."""
        values, tangents = out[0][0], [o for _, o in out]
        if not self._shares:
            return Dual(values, tangents)
        taken = memory(retained()) | self._input_memory
        self._input_memory = set()
        leaves, shape = flatten(values)
        shared = [not taken.isdisjoint(memory([leaf])) for leaf in leaves]
        self._shares = any(shared)
        own = [leaf.clone() if copied else leaf for leaf, copied in zip(leaves, shared)]
        theirs = [
            [o.clone() if copied and o is not None else o for o, copied in zip(each, shared)] for each in tangents
        ]
        return Dual(unflatten(own, shape), theirs)


def split_duals(tree: Any) -> tuple[Any, list[Tensor | None]]:
    """Split a tree into its values and the tangents of its leaves."""
    leaves, shape = flatten(tree)
    if any(t.requires_grad for t in tensors_among(leaves)):
        # The dual pass detaches parameters, so one of them has bypassed it.
        raise TypeError(
            "a parameter bypasses the dual pass, in an autograd.Function or a scripted module: pass parameter * 1 to "
            "the function, and use modules that are not scripted"
        )
    pairs = [unpack_dual(t) if isinstance(t, Tensor) else (t, None) for t in leaves]
    return unflatten([value for value, _ in pairs], shape), [tangent for _, tangent in pairs]
