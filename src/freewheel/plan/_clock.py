"""Dry runs of a plan: a valid order of its actions, and their ticks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from freewheel.plan._actions import ACTIVATION, TURN, Action, Op
from freewheel.plan._schedule import Schedule

Streams = Sequence[Sequence[Action]]
Position = tuple[int, int]  # stage, index in its stream


class Route(NamedTuple):
    """The queue of a kind of message: its letter, and its boundary.

    That is the lower of two stages, which receives a broadcast; or the stage of the replicas.
    """

    letter: str
    boundary: int


class StuckError(Exception):
    """Deadlock: each unfinished stage waits forever at one of these positions."""

    @property
    def positions(self) -> list[Position]:
        return self.args[0]


def routes(schedule: Schedule, stage: int) -> dict[Op, tuple[Route, ...]]:
    """Return the routes of each send and receive of a stage that has a peer; only a broadcast has several."""
    out: dict[Op, tuple[Route, ...]] = {}
    first, last = stage == 0, stage == schedule.stages - 1
    for message in schedule.messages:
        up, down = (Route(message.letter, stage),), (Route(message.letter, stage - 1),)
        if not message.way:
            out |= {message.send: up, message.receive: up}
            continue
        if message.leaves(first=first, last=last):
            to_all = tuple(Route(message.letter, receiver) for receiver in range(stage))
            out[message.send] = to_all if message.broadcast else up if message.way > 0 else down
        if message.arrives(first=first, last=last):
            out[message.receive] = down if message.way > 0 else up
    return out


def capacity(schedule: Schedule, letter: str, boundary: int) -> int:
    """Return the queue length of a message kind at a boundary.

    When stage k receives a broadcast, the last stage may have sent m_k more; slack adds up over the boundaries between.
    """
    if letter == ACTIVATION.letter:
        return schedule.lengths()[boundary][0]
    message = next((message for message in schedule.credit.messages if message.letter == letter), None)
    if message is None:
        return 1
    if message.broadcast:
        more = schedule.delays[-1] + sum(length - 1 for _, length in schedule.lengths()[boundary:])
        return 1 + max(more, schedule.delays[boundary])
    return schedule.lengths()[boundary][1]


def march(schedule: Schedule, streams: Streams) -> Iterator[tuple[Position, Action, Position | None]]:
    """Yield the actions in a valid order, with the position of the matching send for each receive.

    Each stage runs until it waits for a message or for queue space. Raises `StuckError` on deadlock. All replicas
    behave alike, so the contributions of the others are available once a stage has sent its own.
    """
    at = [0] * len(streams)
    known = [routes(schedule, stage) for stage in range(len(streams))]
    room = {route: capacity(schedule, *route) for each in known for found in each.values() for route in found}
    queues: dict[Route, deque[Position]] = {route: deque() for route in room}
    progressed = True
    while progressed:
        progressed = False
        for stage, actions in enumerate(streams):
            while at[stage] < len(actions):
                position, action, source = (stage, at[stage]), actions[at[stage]], None
                if not action.op.is_compute:
                    found = known[stage].get(action.op, ())
                    if action.op.is_send:
                        if not found or any(len(queues[route]) >= room[route] for route in found):
                            break
                        for route in found:
                            queues[route].append(position)
                    else:
                        if not found or not queues[found[0]]:
                            break
                        source = queues[found[0]].popleft()
                yield position, action, source
                at[stage] += 1
                progressed = True
    stuck = [(stage, i) for stage, i in enumerate(at) if i < len(streams[stage])]
    if stuck:
        raise StuckError(stuck)


def ticks(schedule: Schedule, streams: Streams) -> list[list[int]]:
    """Return the earliest tick of each action.

    A forward, a recomputation and a backward each take a tick; with `cell="round"`, a forward and the backward of its
    round share one, and messages arrive for the next. A deadlocked stage is drawn as if it continued.
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
    """Return the tick of an action on a stage that is free at `clock`, and when the stage is free again."""
    if action.op.ticks:
        return clock, clock + 1
    # An update belongs to the tick of the computation before it; a message is sent at its end.
    return (clock - 1 if action.op is Op.UPDATE and clock else clock), clock


def rounds(schedule: Schedule, stage: int, actions: Sequence[Action]) -> list[int]:
    """Return the round of each action: round n has the forward of n and the backward of n - m_k."""
    sent = [message.send for message in schedule.credit.messages if message.made_by is Op.FORWARD]
    forward = (Op.FORWARD, ACTIVATION.send, ACTIVATION.receive, TURN.send, TURN.receive, *sent)
    return [a.batch if a.op in forward else a.batch + schedule.delays[stage] for a in actions]


def _round_ticks(schedule: Schedule, streams: Streams) -> list[list[int]] | None:
    """Return the ticks of whole rounds, or None if the rounds of two stages wait for each other."""
    of = [rounds(schedule, stage, actions) for stage, actions in enumerate(streams)]
    before: dict[Position, set[Position]] = {}
    for stage, numbers in enumerate(of):
        for r in range(max(numbers, default=-1) + 1):
            before[stage, r] = {(stage, r - 1)} if r else set()
    try:
        for (stage, i), _, source in march(schedule, streams):
            if source is not None:
                before[stage, of[stage][i]].add((source[0], of[source[0]][source[1]]))
        tick: dict[Position, int] = {}
        for cell in TopologicalSorter(before).static_order():
            tick[cell] = max((tick[b] + 1 for b in before[cell]), default=0)
    except (StuckError, CycleError):
        return None
    return [[tick[stage, r] for r in numbers] for stage, numbers in enumerate(of)]


def histories(schedule: Schedule, streams: Streams) -> dict[Position, list[int]]:
    """Return the vector clock of each action: how many actions of every stage have happened, itself included."""
    out: dict[Position, list[int]] = {}
    for (stage, i), _, source in march(schedule, streams):
        clock = list(out[stage, i - 1]) if i else [0] * len(streams)
        if source is not None:
            clock = [max(a, b) for a, b in zip(clock, out[source])]
        clock[stage] = i + 1
        out[stage, i] = clock
    return out
