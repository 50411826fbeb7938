"""Running a plan on paper: in which order its actions can happen, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from freewheel.plan._actions import DIRECTION, Action, Op
from freewheel.plan._schedule import Schedule

Streams = Sequence[Sequence[Action]]
Place = tuple[int, int]  # stage, position in its stream
Channel = tuple[str, int]  # letter, lower one of the two stages it joins; or the stage whose replicas it joins


class StuckError(Exception):
    """No stage can go on: each one waits in vain at one of these places."""

    def __init__(self, places: list[Place]) -> None:
        super().__init__(places)
        self.places = places


def channel_of(op: Op, stage: int) -> Channel:
    """The channel that a send or receive of this stage uses."""
    letter = op.channel
    if not DIRECTION[letter]:
        return letter, stage
    upwards = (DIRECTION[letter] > 0) == op.is_send
    return letter, stage if upwards else stage - 1


def capacity(schedule: Schedule, channel: Channel) -> int:
    """How many messages a channel holds before its sender waits."""
    letter, boundary = channel
    if letter == "a":
        return schedule.lengths()[boundary][0]
    if letter in "gde":
        return schedule.lengths()[boundary][1]
    return 1


def march(schedule: Schedule, streams: Streams) -> Iterator[tuple[Place, Action, Place | None]]:
    """The actions in an order in which they can happen; for a receive also the place of its send.

    Each stage runs until it waits for a message, or for room to put one. Raises `StuckError` on deadlock. All replicas
    do the same, so that the others' shares are there once a stage has sent its own.
    """
    at = [0] * len(streams)
    queues: dict[Channel, deque[Place]] = {}
    inside = range(len(streams) - 1)
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(streams):
            while at[stage] < len(actions):
                place, action, source = (stage, at[stage]), actions[at[stage]], None
                if not action.op.is_compute:
                    channel = channel_of(action.op, stage)
                    queue = queues.setdefault(channel, deque())
                    if channel[1] not in inside and DIRECTION[channel[0]]:
                        break
                    if action.op.is_send:
                        if len(queue) >= capacity(schedule, channel):
                            break
                        queue.append(place)
                    else:
                        if not queue:
                            break
                        source = queue.popleft()
                yield place, action, source
                at[stage] += 1
                moved = True
    stuck = [(stage, i) for stage, i in enumerate(at) if i < len(streams[stage])]
    if stuck:
        raise StuckError(stuck)


def ticks(schedule: Schedule, streams: Streams) -> list[list[int]]:
    """The tick at which each action happens, every one as early as it can.

    A forward, a recomputation and a backward each take a tick; in a drawing by rounds, a forward and the backward
    beside it share one, and messages arrive for the next. A stage that is stuck is drawn on as if it were not.
    """
    if schedule.cell == "round":
        by_round = _round_ticks(schedule, streams)
        if by_round is not None:
            return by_round
    out = [[0] * len(actions) for actions in streams]
    done = [0] * len(streams)
    clock = [0] * len(streams)  # the first tick at which the stage is free again
    try:
        for (stage, i), action, source in march(schedule, streams):
            if source is not None:
                clock[stage] = max(clock[stage], out[source[0]][source[1]])
            out[stage][i], clock[stage] = _after(action, clock[stage])
            done[stage] = i + 1
    except StuckError:
        for stage, actions in enumerate(streams):
            for i in range(done[stage], len(actions)):
                out[stage][i], clock[stage] = _after(actions[i], clock[stage])
    return out


def _after(action: Action, clock: int) -> tuple[int, int]:
    """The tick of an action on a stage that is free at `clock`, and when the stage is free again."""
    if action.op in (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD):
        return clock, clock + 1
    # An update belongs to the tick of the work before it; a message leaves at the end of it.
    return (clock - 1 if action.op is Op.UPDATE and clock else clock), clock


def rounds(schedule: Schedule, stage: int, actions: Sequence[Action]) -> list[int]:
    """The number of the round each action belongs to: round n has the forward of n and the backward of n - m_k."""
    forward = (Op.FORWARD, Op.SEND_ACTIVATION, Op.RECEIVE_ACTIVATION, Op.SEND_TURN, Op.RECEIVE_TURN)
    return [a.batch if a.op in forward else a.batch + schedule.delays[stage] for a in actions]


def _round_ticks(schedule: Schedule, streams: Streams) -> list[list[int]] | None:
    """Ticks of whole rounds, or None where the rounds of two stages wait for each other."""
    of = [rounds(schedule, stage, actions) for stage, actions in enumerate(streams)]
    before: dict[Place, set[Place]] = {}
    for stage, numbers in enumerate(of):
        for r in range(max(numbers, default=-1) + 1):
            before[stage, r] = {(stage, r - 1)} if r else set()
    try:
        for (stage, i), _, source in march(schedule, streams):
            if source is not None:
                before[stage, of[stage][i]].add((source[0], of[source[0]][source[1]]))
        tick: dict[Place, int] = {}
        for cell in TopologicalSorter(before).static_order():
            tick[cell] = max((tick[b] + 1 for b in before[cell]), default=0)
    except (StuckError, CycleError):
        return None
    return [[tick[stage, r] for r in numbers] for stage, numbers in enumerate(of)]


def histories(schedule: Schedule, streams: Streams) -> dict[Place, list[int]]:
    """For each action, how many actions of every stage have happened before it or are it (a vector clock)."""
    out: dict[Place, list[int]] = {}
    for (stage, i), _, source in march(schedule, streams):
        clock = list(out[stage, i - 1]) if i else [0] * len(streams)
        if source is not None:
            clock = [max(a, b) for a, b in zip(clock, out[source])]
        clock[stage] = i + 1
        out[stage, i] = clock
    return out
