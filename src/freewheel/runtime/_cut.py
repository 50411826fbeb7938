"""Snapshots: what each stage contributes to a cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from freewheel.checkpoint import Counts, File
from freewheel.trace import Recording


@dataclass
class Snapshot:
    """One stage's contribution to a cut, after a number of batches; or the file that it has saved itself to then."""

    stage: int
    batches: int
    busy: float  # seconds of work since the cut before
    gaps: int  # updates between each forward and its own, added up since the cut before
    losses: list[tuple[Tensor, int]] = field(default_factory=list)
    state: dict[str, Any] | None = None
    updates: int = 0  # since the cut before
    saved: tuple[File, ...] = ()  # for a checkpoint: the files that it has written
    replica: int = 0
    step: bool = False  # whether it is the report of one update, with the loss of that batch alone
    norm: Tensor | None = None  # of the gradient, for a report
    layers: dict[str, tuple[int, int, float, int, float]] = field(default_factory=dict)  # of races: `LayerUpdates`
    recordings: tuple[Recording, ...] = ()  # what has been traced

    @property
    def counts(self) -> Counts:
        """The counts of the stage since the cut before."""
        return Counts(self.busy, self.gaps, self.updates, self.losses)
