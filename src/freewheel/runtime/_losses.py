"""The losses of a stage, kept apart by batch.

::

    delays 3    two batches an epoch, | where an epoch ends
    F0 F1 F2 F3 U0 F4 U1 | F5 U2 F6 U3 | …        at the first cut the losses of 2, 3 and 4 are there, too: they stay
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from freewheel.stage import Stage, to_device

Loss = tuple[Tensor, int]  # with the number of samples that it is the mean of
Dated = tuple[int, Tensor, int]  # with its batch


class Losses:
    """What a stage has lost since the last cut: a loss belongs to its batch, however late that one's update is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._found: list[Dated] = []

    def note(self, batch: int) -> None:
        """Takes the losses that the stage has just found, in an action of this batch."""
        self._found += [(batch, *loss) for loss in self._stage.losses]
        self._stage.losses = []

    def apart(self, batches: int | None) -> tuple[list[Loss], list[Dated]]:
        """Those of the first so many batches, of all by default, and later ones."""
        early = [(loss, size) for batch, loss, size in self._found if batches is None or batch < batches]
        return early, [loss for loss in self._found if batches is not None and loss[0] >= batches]

    def take(self, batches: int | None) -> list[Loss]:
        """Those of the first so many batches, of all by default; the later ones stay."""
        early, self._found = self.apart(batches)
        return early

    def restore(self, batches: int, early: Iterable[Loss], later: Iterable[Dated]) -> None:
        """Takes up what `apart` gave after so many batches."""
        found = [*((batches - 1, *loss) for loss in early), *later]
        self._found = to_device(found, self._stage.device)
