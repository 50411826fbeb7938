"""The threads on which a stage executes its actions: usually one."""

from __future__ import annotations

from freewheel.plan import Action
from freewheel.runtime._straggler import Straggler
from freewheel.stage import Stage
from freewheel.trace import Tracer, tracer_for


class Lane:
    """What the actions of one thread of a stage share."""

    def __init__(self, stage: Stage, tracer: Tracer) -> None:
        self.tracer, self.straggler = tracer, Straggler.of(stage)
        self.doing: tuple[Action, float] | None = None  # the work under way, and since when
        self.busy = 0.0  # seconds of work since the cut before


def lanes_of(stage: Stage, tracer: Tracer | None, batches: range | None) -> list[Lane]:
    """The lanes of a stage: one, or one for forwards and one for all else."""
    lanes = 2 if stage.overlaps else 1
    return [Lane(stage, tracer or tracer_for(stage.index, stage.replica, stage.device, batches)) for _ in range(lanes)]
