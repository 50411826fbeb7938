"""Builders: small pure generators that turn a schedule into each stage's stream of actions.

They are lazy and take any iterable of batch numbers, so that a run need not know its length beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from freewheel.plan._actions import ACTIVATION, CLIP, NORMS, SHARE, TURN, Action, Op
from freewheel.plan._schedule import Order, Schedule


def alternate(units: Iterable[int], delay: int, order: Order) -> Iterator[tuple[Literal["F", "B"], int]]:
    """One stage's forwards and backwards, the forwards running `delay` units ahead of the backwards.

    ::

        delay 2, forward-first:   F0 F1 F2 B0 F3 B1 F4 B2 | B3 B4
        delay 2, backward-first:  F0 F1 B0 F2 B1 F3 B2 F4 | B3 B4
        delay 0, either:          F0 B0 F1 B1 F2 B2 F3 B3 F4 B4
                                                          [drain]

    Example:
        >>> " ".join(f"{op}{n}" for op, n in alternate(range(4), 2, "backward"))
        'F0 F1 B0 F2 B1 F3 B2 B3'
    """
    pending: deque[int] = deque()
    for n in units:
        if order == "backward" and delay and len(pending) == delay:
            yield "B", pending.popleft()
        yield "F", n
        pending.append(n)
        if len(pending) > delay:
            yield "B", pending.popleft()
    while pending:
        yield "B", pending.popleft()


def delayed(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """Forwards, and after the stage's delay backwards and updates, with the versions each one sees."""
    delay = schedule.delays[stage]
    forwarded: dict[int, int] = {}  # batch -> version its forward saw
    version = 0
    for op, n in alternate(batches, delay, schedule.order):
        if op == "F":
            forwarded[n] = version
            yield Action(Op.FORWARD, n, version)
            continue
        seen = forwarded.pop(n)
        if delay and schedule.weights == "recompute":
            yield Action(Op.RECOMPUTE, n, version)
        late = delay and schedule.weights in ("stash", "predict")
        yield Action(Op.BACKWARD, n, seen if late else version)
        yield Action(Op.UPDATE, n, version)
        version += 1


def flushed(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """Micro-batches, and one update when all of a batch have gone backward."""
    for n in batches:
        for op, j in alternate(range(schedule.micro), schedule.ahead[stage], "forward"):
            yield Action(Op.FORWARD if op == "F" else Op.BACKWARD, n, n, j)
        yield Action(Op.UPDATE, n, n)


def forward_only(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """Forwards, and after the stage's delay updates."""
    pieces = range(schedule.micro) if schedule.micro > 1 else (None,)
    version = 0
    for op, n in alternate(batches, schedule.delays[stage], schedule.order):
        if op == "F":
            for j in pieces:
                yield Action(Op.FORWARD, n, version, j)
        else:
            yield Action(Op.UPDATE, n, version)
            version += 1


def followed_up(actions: Iterable[Action], op: Op, lag: int) -> Iterator[Action]:
    """Adds an op for each batch once `lag` more have been learned from, and for the last ones at the end.

    ::

        lag 1:  F0 B0 U0  F1 B1 U1 S0  F2 B2 U2 S1 | S2
                                                   [drain]
    """
    learned: deque[int] = deque()
    done = 0
    for action in actions:
        yield action
        if action.op is Op.UPDATE:
            learned.append(action.batch)
            if len(learned) > lag:
                yield Action(op, learned.popleft(), done)
                done += 1
    for i, n in enumerate(learned):
        yield Action(op, n, done + i)


def wire(schedule: Schedule, stage: int, actions: Iterable[Action]) -> Iterator[Action]:
    """Adds the messages: whatever is needed is received just before its use, whatever is made is sent at once.

    The recomputation of a forward needs no gradient, so the gradient is received after it. A message that is relayed is
    passed on before the stage itself uses it, so that nobody waits for an update. Replicas contribute to the all-reduce
    once their neighbours have been served, and wait for each other only then.
    """
    first, last = stage == 0, stage == schedule.stages - 1
    messages = (ACTIVATION, *schedule.credit.messages)
    received = [m for m in messages if m.arrives(first=first, last=last)]
    sent = [m for m in messages if m.leaves(first=first, last=last)]
    for action in actions:
        op, n, _, j = action
        for message in messages:
            if message.needed_by is op and message in received:
                yield Action(message.receive, n, None, j)
            if message.needed_by is op and message.relayed and message in sent:
                yield Action(message.send, n, None, j)
        if op is Op.UPDATE:
            yield from _agreed(schedule, n, first=first, last=last)
        yield action
        for message in sent:
            if message.made_by is op and not message.relayed:
                yield Action(message.send, n, None, j)
        if op is Op.FORWARD and schedule.turns and not last:
            yield Action(TURN.receive, n)
        if op is Op.FORWARD and schedule.turns and not first:
            yield Action(TURN.send, n)
        if op is Op.UPDATE and schedule.norms and not last:
            yield Action(CLIP.send, n)


def _agreed(schedule: Schedule, n: int, *, first: bool, last: bool) -> Iterator[Action]:
    """What replicas, and stages that clip by the global norm, exchange before an update."""
    if schedule.replicas > 1:
        yield Action(SHARE.send, n)
        yield Action(SHARE.receive, n)
    if schedule.norms and not last:
        yield Action(NORMS.receive, n)
    if schedule.norms and not first:
        yield Action(NORMS.send, n)
        yield Action(CLIP.receive, n)


def stream(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """The whole stream of one stage: its work and its messages.

    Example:
        >>> from freewheel.credit import Chain
        >>> schedule = Schedule(credit=Chain(), delays=(1, 0))
        >>> " ".join(map(str, stream(schedule, 0, range(2))))
        'F0@0 a0> F1@0 a1> >g0 B0@0 U0@0 >g1 B1@0 U1@1'
    """
    return wire(schedule, stage, schedule.credit.actions(schedule, stage, batches))
