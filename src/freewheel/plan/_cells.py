"""The cells of a timeline: which computation fills which part of a tick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from freewheel.plan._actions import Action, Op
from freewheel.plan._clock import Streams, ticks
from freewheel.plan._schedule import Schedule

DRAWN = (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD)


class Cell(NamedTuple):
    """A forward, a recomputation or a backward on a timeline.

    Args:
        stage: The stage.
        op: `F`, `R` or `B`.
        batch: The batch.
        micro: The micro-batch, if there are any.
        version: The version of the weights that it sees.
        begin: The tick at which it begins.
        end: The tick at which it ends.
    """

    stage: int
    op: str
    batch: int
    micro: int | None
    version: int | None
    begin: float
    end: float


def cells(schedule: Schedule, streams: Streams) -> tuple[Cell, ...]:
    """The cells of all stages, each in the order of its stream.

    Where a plan is drawn in rounds, a forward and a backward of one round share two ticks.
    """
    scale = 2 if schedule.cell == "round" else 1
    when = ticks(schedule, streams)
    return tuple(
        cell
        for stage, actions in enumerate(streams)
        for cell in _row(stage, actions, [scale * tick for tick in when[stage]], scale)
    )


def _row(stage: int, actions: Sequence[Action], when: Sequence[int], scale: int) -> Iterator[Cell]:
    inside: dict[int, list[Action]] = {}
    for action, tick in zip(actions, when):
        if action.op in DRAWN:
            inside.setdefault(tick, []).append(action)
    for tick, found in inside.items():
        share = scale / max(scale, len(found))
        for i, action in enumerate(found):
            begin = tick + i * share
            yield Cell(stage, action.op.value, action.batch, action.micro, action.version, begin, begin + share)
