"""A plan: the stream of actions of each stage, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from freewheel.plan._actions import Action, Op
from freewheel.plan._cells import Cell, cells
from freewheel.plan._check import check
from freewheel.plan._clock import histories
from freewheel.plan._draw import draw, parse
from freewheel.plan._schedule import Schedule
from freewheel.plan._streams import stream


class Versions(NamedTuple):
    """The weight versions of a batch's forward and backward at one stage; without a backward both are the forward's."""

    forward: int
    backward: int


class Memory(NamedTuple):
    """The peak memory of a stage.

    `inputs` counts stored inputs without a graph (and activations stored for the fit of a predictor), `graphs` the
    autograd graphs, `weights` the copies of the stage's weights, including the trained one.
    """

    inputs: int
    graphs: int
    weights: int


@dataclass(frozen=True)
class Plan:
    """The ordered actions of every stage. Build one with `freewheel.plan`; `print` draws it.

    Example:
        >>> import freewheel as fw
        >>> print(fw.plan("pipedream", k=2, batches=3))
        plan pipedream: delays=1,0 batches=3
        time     0     1     2      3      4      5      6      7
        stage 0  F0@0  F1@0  .      B0@0!  F2@1   B1@0!  .      B2@1!
        stage 1  .     F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  .
    """

    schedule: Schedule
    batches: int
    streams: tuple[tuple[Action, ...], ...]

    @classmethod
    def build(cls, schedule: Schedule, batches: int) -> Plan:
        """Build and check the plan of a schedule for a number of batches."""
        streams = tuple(tuple(stream(schedule, k, range(batches))) for k in range(schedule.stages))
        return cls(schedule=schedule, batches=batches, streams=streams).check()

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Parse and check a drawing; see `freewheel.plan.parse`."""
        return parse(text).check()

    def check(self) -> Plan:
        """Return this plan if it keeps all rules; raise `PlanError` with the first offending cell otherwise."""
        check(self.schedule, self.batches, self.streams)
        return self

    def __str__(self) -> str:
        return draw(self.schedule, self.batches, self.streams)

    def cells(self) -> tuple[Cell, ...]:
        """Return the computations of the timeline, each with the ticks at which it begins and ends."""
        return cells(self.schedule, self.streams)

    def text(self) -> str:
        """Return every action of every stage, messages included, one line per stage."""
        rows = (f"stage {k}  {' '.join(map(str, actions))}" for k, actions in enumerate(self.streams))
        return "\n".join([str(self).splitlines()[0], *rows])

    @property
    def delays(self) -> tuple[int, ...]:
        """For each stage, the number of batches it has forwarded beyond the one it learns from, in steady state."""
        return self.schedule.delays

    @cached_property
    def staleness(self) -> tuple[int, ...]:
        """For each stage, the most updates between the forward of a batch and the update with it.

        In steady state every batch has that many: as many as the delay, or one fewer where a late stage goes backward
        first.
        """
        return tuple(max(self._stale_updates(stage), default=0) for stage in range(self.schedule.stages))

    def _stale_updates(self, stage: int) -> Iterator[int]:
        seen: dict[int, int] = {}  # batch -> version at its first forward
        for action in self.streams[stage]:
            if action.op is Op.FORWARD and action.version is not None:
                seen.setdefault(action.batch, action.version)
            elif action.op is Op.UPDATE and action.version is not None:
                yield action.version - seen[action.batch]

    @cached_property
    def locks(self) -> frozenset[str]:
        """The locks that remain, out of `forward`, `backward` and `update`.

        - `forward`: the first stage forwards a unit only after the last stage has forwarded the previous one.
        - `backward`: the last stage runs the backward of a unit only after the first stage has run that of the
          previous one, which depends on the last stage.
        - `update`: the first stage forwards a batch only after the last stage has run the backward of the previous one
          (its forward, if no gradients are sent back).

        The unit is the micro-batch if there are any, otherwise the batch.
        """
        history = histories(self.schedule, self.streams)
        last = self.schedule.stages - 1

        def positions(op: Op, stage: int) -> list[tuple[int, Action]]:
            return [(i, a) for i, a in enumerate(self.streams[stage]) if a.op is op]

        def ordered(op: Op, stage: int, by: Op, other: int, *, batchwise: bool = False, offset: int = 1) -> bool:
            """Whether each `op` at `stage` happens after `by` at `other` of the unit `offset` earlier."""
            ours, theirs = positions(op, stage), positions(by, other)
            if batchwise:
                ours = [(i, a) for i, a in ours if not a.micro]
                theirs = [(i, a) for i, a in theirs if a.micro in (None, self.schedule.micro - 1)]
            pairs = [(mine, theirs[n][0]) for n, (mine, _) in enumerate(ours[offset:])]
            return all(history[stage, mine][other] > their for mine, their in pairs)

        waits = self.schedule.waits_for_gradients
        found = {
            "forward": ordered(Op.FORWARD, 0, Op.FORWARD, last),
            "backward": self.schedule.goes_backward
            and ordered(Op.BACKWARD, last, Op.BACKWARD, 0)
            and ordered(Op.BACKWARD, 0, Op.BACKWARD, last, offset=0),
            "update": ordered(Op.FORWARD, 0, Op.BACKWARD if waits else Op.FORWARD, last, batchwise=True),
        }
        return frozenset(lock for lock, held in found.items() if held)

    def versions(self, stage: int, batch: int) -> Versions:
        """Return the versions that the forward and the backward of a batch see at a stage."""
        if not 0 <= stage < self.schedule.stages:
            raise ValueError(f"stage={stage}: this plan has stages 0 to {self.schedule.stages - 1}")
        if not 0 <= batch < self.batches:
            raise ValueError(f"batch={batch}: this plan has batches 0 to {self.batches - 1}")
        seen = {a.op: a.version for a in self.streams[stage] if a.batch == batch and a.version is not None}
        return Versions(seen[Op.FORWARD], seen.get(Op.BACKWARD, seen[Op.FORWARD]))

    def memory(self) -> tuple[Memory, ...]:
        """Return the peak memory of each stage: stored inputs, graphs and weight copies."""
        return tuple(self._memory(stage) for stage in range(self.schedule.stages))

    def _memory(self, stage: int) -> Memory:
        if not self.schedule.goes_backward:
            return Memory(0, 0, 1)
        extra = self.schedule.credit.extra if stage < self.schedule.stages - 1 else None
        late = self.schedule.delays[stage] > 0
        replays = late and self.schedule.weights == "recompute"
        copies = late and self.schedule.weights in ("stash", "predict")
        inputs = graphs = 0
        seen: dict[tuple[int, int | None], int] = {}  # graph -> version it was made with
        most = Memory(0, 0, 1)
        for op, batch, version, micro in self.streams[stage]:
            if op is Op.FORWARD and replays:
                inputs += 1
            elif op is Op.RECOMPUTE:
                inputs, graphs = inputs - 1, graphs + 1
            elif op is Op.FORWARD:
                graphs, inputs = graphs + 1, inputs + (extra is not None)
                if copies and version is not None:
                    seen[batch, micro] = version
            elif op is Op.BACKWARD:
                graphs -= 1
                seen.pop((batch, micro), None)
            elif op is extra:
                inputs -= 1
            most = Memory(
                max(most.inputs, inputs), max(most.graphs, graphs), max(most.weights, 1 + len(set(seen.values())))
            )
        return most

    def with_slack(self, slack: int) -> Plan:
        """Return the plan with every queue longer by `slack`: the same result, less delay by stragglers."""
        return replace(self, schedule=self.schedule.with_slack(slack)).check()
