"""Cutting a plan after N updates: the remaining actions and the messages in flight.

Each stage stops on its own right after its update N-1. Here stage 0 has then sent what stage 1 has not received:

::

    delays 2,0    cut after U1
    stage 0  F0 a0> F1 a1> F2 a2> >g0 B0 U0 F3 a3> >g1 B1 U1 | F4 a4> >g2 …
    stage 1  >a0 F0 B0 g0> U0 >a1 F1 B1 g1> U1               | >a2 F2 …          a2 and a3 are in flight

Conversely, a stage may have received a message that its neighbour sends only after the cut (a turn, the global norm);
the rest of the plan leaves that send out. If the extra op of a credit lags the updates, `lag + 1` of its messages are
in flight. Replicas all-reduce before each update, so none of these messages are in flight at a cut. Of a broadcast all
stages have received the same messages at a cut, so one of them stands for all.

All this follows from the plan alone. Every batch is treated alike, so a stream that begins with batch N-1-lag has the
same rest as one that begins with batch 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count

from freewheel.plan._actions import Action, Op
from freewheel.plan._schedule import Schedule
from freewheel.plan._streams import stream

Message = tuple[str, int, int | None]  # letter of the channel, batch, micro-batch


def in_flight(schedule: Schedule, stage: int, batches: int, forwarded: int | None = None) -> list[Action]:
    """Return the sends of a stage before the cut that are received after it.

    Args:
        schedule: The schedule.
        stage: The sending stage.
        batches: N, the number of updates before the cut, 1 or more.
        forwarded: The number of batches of the run, if the stage has forwarded them all; unlimited by default.

    Example:
        >>> from freewheel.credit import Chain
        >>> [str(action) for action in in_flight(Schedule(credit=Chain(), delays=(2, 0)), 0, batches=2)]
        ['a2>', 'a3>']
    """
    received, ways = _received(schedule, stage, batches, forwarded), _ways(schedule)
    actions = _before(schedule, stage, batches, _from(schedule, batches, forwarded))
    sends = (action for action in actions if ways.get(action.op))
    return [a for a in sends if _message(a) not in received[stage + ways[a.op]]]


def rest(schedule: Schedule, stage: int, batches: int, numbers: Iterable[int]) -> Iterator[Action]:
    """Yield the actions of a stage after its update N-1.

    Args:
        schedule: The schedule.
        stage: The stage.
        batches: N, 1 or more.
        numbers: The numbers of the batches from N-1 on.

    Example:
        >>> from freewheel.credit import Chain
        >>> schedule = Schedule(credit=Chain(), delays=(2, 0))
        >>> " ".join(map(str, rest(schedule, 0, 2, range(1, 5))))
        'F4@2 a4> >g2 B2@0 U2@2 >g3 B3@1 U3@3 >g4 B4@2 U4@4'
    """
    received, ways = _received(schedule, stage, batches, None), _ways(schedule)
    actions = _stream(schedule, stage, batches, chain(range(_start(schedule, batches), batches - 1), numbers))
    for action in actions:
        if _is_cut(action, batches):
            break
    for action in actions:
        neighbour = stage + ways.get(action.op, 0)
        if neighbour == stage or _message(action) not in received[neighbour]:
            yield action


def _ways(schedule: Schedule) -> dict[Op, int]:
    """Return the direction of each send: +1 to the next stage, -1 to the previous one, 0 to the other replicas."""
    return {message.send: message.way for message in schedule.messages}


def _before(schedule: Schedule, stage: int, batches: int, numbers: Iterable[int]) -> Iterator[Action]:
    """Yield the actions of a stage on these batches up to its update N-1."""
    for action in _stream(schedule, stage, batches, numbers):
        yield action
        if _is_cut(action, batches):
            return


def _stream(schedule: Schedule, stage: int, batches: int, numbers: Iterable[int]) -> Iterator[Action]:
    """Yield the stream of these batches, with versions as if it began with batch 0."""
    delay = schedule.delays[stage]
    lead = delay - (schedule.order == "backward" and delay > 0)  # updates that a forward does not see
    late = delay > 0 and schedule.weights in ("stash", "predict")
    for action in stream(schedule, stage, numbers):
        if action.version is not None:
            seen = action.op is Op.FORWARD or (late and action.op is Op.BACKWARD)
            action = action._replace(version=max(0, action.batch - lead) if seen else action.batch)
        yield action


def _received(schedule: Schedule, stage: int, batches: int, forwarded: int | None) -> dict[int, set[Message]]:
    """Return, for each neighbour of a stage, the messages of the last batches that it received before the cut."""
    streams = {
        k: _before(schedule, k, batches, _from(schedule, batches, forwarded))
        for k in (stage - 1, stage + 1)
        if 0 <= k < schedule.stages
    }
    return {k: {_message(action) for action in actions if action.op.is_receive} for k, actions in streams.items()}


def _start(schedule: Schedule, batches: int) -> int:
    """Return the first batch that matters after the cut: N-1, or the first whose extra op comes after it."""
    return max(0, batches - 1 - schedule.credit.lag)


def _from(schedule: Schedule, batches: int, end: int | None) -> Iterable[int]:
    start = _start(schedule, batches)
    return count(start) if end is None else range(start, end)


def _is_cut(action: Action, batches: int) -> bool:
    return action.op is Op.UPDATE and action.batch == batches - 1


def _message(action: Action) -> Message:
    return action.op.channel, action.batch, action.micro
