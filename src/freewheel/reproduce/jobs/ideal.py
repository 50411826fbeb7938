"""The ideal time of a batch, from a method's plan: a dry run with given durations, and free messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from freewheel.methods import Method
from freewheel.plan import Op, Plan
from freewheel.plan._clock import capacity, march, routes
from freewheel.reproduce.jobs._job import Context, Job, in_words

FITTED = (3, 4)  # numbers of stages from which the coefficients of T and T/K follow
BATCHES, BEGIN, END = 36, 12, 24  # of a plan, and the part of it in which the pipeline is full
STEP = Fraction(1, 1000)
Times = Mapping[str, Fraction]


@dataclass(frozen=True, kw_only=True)
class Ideal(Job):
    """What a batch takes in a plan of equal stages, as a sum of T and T/K.

    Args:
        method: The method.
        forward, backward, update, auxiliary: The names of those times; the first two are of the whole network, an
            update is that of a stage, and the auxiliary one is that of a stage's own network.
    """

    seeded: ClassVar[bool] = False

    method: Method
    forward: str = "T_f"
    backward: str = "T_b"
    update: str = ""
    auxiliary: str = "T_aux"

    @property
    def title(self) -> str:
        """The method."""
        return f"plan of {in_words(self.method)}"

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The coefficients of every time, fitted to two numbers of stages."""
        found: dict[str, Any] = {}
        for name in filter(None, (self.forward, self.backward, self.update, self.auxiliary)):
            few, many = (self._slope(name, k) for k in FITTED)
            share = (few - many) / (Fraction(1, FITTED[0]) - Fraction(1, FITTED[1]))
            found |= {f"{name}/K": float(share), name: float(few - share / FITTED[0])}
        return found

    def _slope(self, name: str, k: int) -> Fraction:
        """How much longer a batch takes with K stages per unit of one of the times."""
        times = {self.forward: Fraction(1), self.backward: Fraction(2), self.update: Fraction(1, 50)}
        times |= {self.auxiliary: Fraction(1, 50)}
        longer = {**times, name: times[name] + STEP}
        return (self.time(k, longer) - self.time(k, times)) / STEP

    def time(self, k: int, times: Times) -> Fraction:
        """The time of a batch with K stages in steady state.

        Example:
            >>> from freewheel.methods import FDG
            >>> Ideal(method=FDG()).time(3, {"T_f": Fraction(1), "T_b": Fraction(2)})
            Fraction(1, 1)
        """
        plan = Plan.build(self.method.pipeline(k).schedule(), BATCHES)
        share = plan.schedule.micro * k
        durations = {
            Op.FORWARD: times.get(self.forward, Fraction(0)) / share,
            Op.RECOMPUTE: times.get(self.forward, Fraction(0)) / share,
            Op.BACKWARD: times.get(self.backward, Fraction(0)) / share,
            Op.UPDATE: times.get(self.update, Fraction(0)),
        }
        ends = updates(plan, durations, times.get(self.auxiliary, Fraction(0)))
        return (ends[END] - ends[BEGIN]) / (END - BEGIN)


def updates(plan: Plan, durations: Mapping[Op, Fraction], auxiliary: Fraction) -> list[Fraction]:
    """When every stage has made its update with each batch.

    A stage with a network of its own works on it once a batch: within the backward of a local loss, or when it is
    fitted to a gradient that has arrived. A send waits until there is room for it.
    """
    schedule, streams = plan.schedule, plan.streams
    own = schedule.credit.extra or (Op.BACKWARD if not schedule.waits_for_gradients else None)
    clock = [Fraction(0)] * len(streams)
    known = [routes(schedule, stage) for stage in range(len(streams))]
    sent: dict[tuple[int, int], Fraction] = {}
    free = {  # when each place of a queue became free
        route: deque([Fraction(0)] * capacity(schedule, *route))
        for each in known
        for found in each.values()
        for route in found
    }
    ends = [Fraction(0)] * plan.batches
    for (stage, i), action, source in march(schedule, streams):
        op = action.op
        if op.is_compute:
            clock[stage] += durations.get(op, Fraction(0))
            clock[stage] += auxiliary if op is own and stage < len(streams) - 1 else 0
            ends[action.batch] = max(ends[action.batch], clock[stage])
            continue
        rooms = [free[route] for route in known[stage][op]]
        if op.is_send:
            clock[stage] = max(clock[stage], *(room.popleft() for room in rooms))
            sent[stage, i] = clock[stage]
        else:
            assert source is not None
            clock[stage] = max(clock[stage], sent[source])
            rooms[0].append(clock[stage])
    return ends
