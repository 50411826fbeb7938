"""What a stage needs to know of its run, in whichever process it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from freewheel.checkpoint import Checkpoint, CheckpointWriter
from freewheel.runtime._feed import Start
from freewheel.runtime._settings import TorchSettings


class Before(NamedTuple):
    """What a trainer has trained in earlier fits."""

    batches: int = 0
    epochs: int = 0


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The options of one `fit`, as all its stages get them."""

    seed: int  # of the process-wide generators, where a stage has a process of its own
    before: Before
    states: bool  # whether cuts hold copies of the weights
    writer: CheckpointWriter | None  # writes the stages' files of checkpoints
    checkpoint: Checkpoint | None  # the one to resume from
    steps: bool = False  # whether each stage reports every update
    norms: bool = False  # with the norm of its gradient
    trace: range | None = None  # the batches whose actions are recorded
    settings: TorchSettings = field(default_factory=TorchSettings.current)  # of the caller

    @property
    def start(self) -> Start:
        """Where the feed begins."""
        if self.checkpoint is None:
            return Start()
        position = self.checkpoint.position
        return Start(position.batches, position.epoch, position.first, position.last)
