"""The losses of a stage, by batch.

::

    delays 3    two batches an epoch, | where an epoch ends
    F0 F1 F2 F3 U0 F4 U1 | F5 U2 F6 U3 | …        at the first cut, those of batches 2, 3 and 4 are retained
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from freewheel.stage import Stage, to_device

Loss = tuple[Tensor, int]  # a mean, and its number of samples
Dated = tuple[int, Tensor, int]  # with its batch


class Losses:
    """The losses of a stage since the last cut; each belongs to its batch, however late the update is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._found: list[Dated] = []

    def note(self, batch: int) -> None:
        """Take the losses that an action of this batch has just produced."""
        if self._stage.losses:
            self._found += [(batch, *loss) for loss in self._stage.losses]
            self._stage.losses = []

    def add(self, batch: int, loss: Tensor, size: int) -> None:
        """Add a loss of a batch."""
        self._found.append((batch, loss, size))

    def of(self, batch: int) -> list[Loss]:
        """The losses of one batch."""
        return [(loss, size) for number, loss, size in self._found if number == batch]

    def split(self, batches: int | None) -> tuple[list[Loss], list[Dated]]:
        """The losses of the first `batches` batches (all by default), and later ones."""
        early = [(loss, size) for batch, loss, size in self._found if batches is None or batch < batches]
        return early, [loss for loss in self._found if batches is not None and loss[0] >= batches]

    def take(self, batches: int | None) -> list[Loss]:
        """Remove and return the losses of the first `batches` batches (all by default)."""
        early, self._found = self.split(batches)
        return early

    def restore(self, batches: int, early: Iterable[Loss], later: Iterable[Dated]) -> None:
        """Load what `split` returned after this many batches."""
        found = [*((batches - 1, *loss) for loss in early), *later]
        self._found = to_device(found, self._stage.device)
