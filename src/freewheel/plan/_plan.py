"""A plan: for each stage, the stream of its actions, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from freewheel.plan._actions import Action, Op
from freewheel.plan._check import check
from freewheel.plan._clock import histories
from freewheel.plan._draw import draw, parse
from freewheel.plan._schedule import Schedule
from freewheel.plan._streams import stream


class Versions(NamedTuple):
    """The weight versions that a batch's forward and its backward see at one stage.

    Under forward credit there is no backward, and the derivative is taken at the forward's.
    """

    forward: int
    backward: int


class Memory(NamedTuple):
    """The most that a stage holds at once.

    `inputs` counts stored inputs without a graph (and what predictors of gradients have seen, until they are fitted to
    it), `graphs` the autograd graphs (each with its input), `weights` the
    copies of the stage's weights, the one being trained included.
    """

    inputs: int
    graphs: int
    weights: int


@dataclass(frozen=True)
class Plan:
    """What each stage does, in order. Build one with `freewheel.plan`; `print` draws it.

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
        """The checked plan of a schedule for a number of batches."""
        streams = tuple(tuple(stream(schedule, k, range(batches))) for k in range(schedule.stages))
        return cls(schedule=schedule, batches=batches, streams=streams).check()

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The checked plan that a drawing stands for; see `parse` in `freewheel.plan`."""
        return parse(text).check()

    def check(self) -> Plan:
        """This plan, if it keeps all rules; raises `PlanError` with the first offending cell otherwise."""
        check(self.schedule, self.batches, self.streams)
        return self

    def __str__(self) -> str:
        return draw(self.schedule, self.batches, self.streams)

    def text(self) -> str:
        """Every action of every stage, messages included, a line a stage."""
        rows = (f"stage {k}  {' '.join(map(str, actions))}" for k, actions in enumerate(self.streams))
        return "\n".join([str(self).splitlines()[0], *rows])

    @property
    def delays(self) -> tuple[int, ...]:
        """For each stage, how many batches it has forwarded beyond the one it learns from, in steady state."""
        return self.schedule.delays

    @cached_property
    def locks(self) -> frozenset[str]:
        """The locks that remain, out of `forward`, `backward` and `update`.

        - `forward`: the first stage forwards nothing new before the last stage has forwarded the unit before.
        - `backward`: the last stage goes backward on nothing new before the first stage has done the unit before, by
          what comes back from it.
        - `update`: the first stage forwards no new batch before the last stage has gone backward on the one before
          (has forwarded it, where no gradient comes back).

        The unit is the micro-batch where there are any, otherwise the batch.
        """
        history = histories(self.schedule, self.streams)
        last = self.schedule.stages - 1

        def places(op: Op, stage: int) -> list[tuple[int, Action]]:
            return [(i, a) for i, a in enumerate(self.streams[stage]) if a.op is op]

        def ordered(op: Op, stage: int, by: Op, other: int, *, batchwise: bool = False, behind: int = 1) -> bool:
            """Whether each `op` at `stage` happens after `by` of the unit before at `other`, and there are any."""
            ours, theirs = places(op, stage), places(by, other)
            if batchwise:
                ours = [(i, a) for i, a in ours if not a.micro]
                theirs = [(i, a) for i, a in theirs if a.micro in (None, self.schedule.micro - 1)]
            pairs = [(mine, theirs[n][0]) for n, (mine, _) in enumerate(ours[behind:])]
            return all(history[stage, mine][other] > their for mine, their in pairs)

        waits = self.schedule.waits_for_gradients
        found = {
            "forward": ordered(Op.FORWARD, 0, Op.FORWARD, last),
            "backward": self.schedule.goes_backward
            and ordered(Op.BACKWARD, last, Op.BACKWARD, 0)
            and ordered(Op.BACKWARD, 0, Op.BACKWARD, last, behind=0),
            "update": ordered(Op.FORWARD, 0, Op.BACKWARD if waits else Op.FORWARD, last, batchwise=True),
        }
        return frozenset(lock for lock, held in found.items() if held)

    def versions(self, stage: int, batch: int) -> Versions:
        """The versions that the forward and the backward of a batch see at a stage."""
        if not 0 <= stage < self.schedule.stages:
            raise ValueError(f"stage={stage}: this plan has stages 0 to {self.schedule.stages - 1}")
        if not 0 <= batch < self.batches:
            raise ValueError(f"batch={batch}: this plan has batches 0 to {self.batches - 1}")
        seen = {a.op: a.version for a in self.streams[stage] if a.batch == batch and a.version is not None}
        return Versions(seen[Op.FORWARD], seen.get(Op.BACKWARD, seen[Op.FORWARD]))

    def memory(self) -> tuple[Memory, ...]:
        """The most each stage holds at once: stored inputs, graphs and weight copies."""
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
                max(most.inputs, inputs),
                max(most.graphs, graphs),
                max(most.weights, 1 + len(set(seen.values()))),
            )
        return most

    def with_slack(self, slack: int) -> Plan:
        """The same plan with every queue longer by `slack`: the result is the same, stragglers hurt less."""
        return replace(self, schedule=self.schedule.with_slack(slack)).check()
