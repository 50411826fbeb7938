"""Builders: pure generators that turn a schedule into the stream of actions of each stage.

They are lazy and take any iterable of batch numbers, so the length of a run may be unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from freewheel.plan._actions import ACTIVATION, CLIP, NORMS, SHARE, TURN, Action, Op
from freewheel.plan._schedule import Order, Schedule


def alternate(units: Iterable[int], delay: int, order: Order) -> Iterator[tuple[Literal["F", "B"], int]]:
    """Yield the forwards and backwards of a stage, the forwards `delay` units ahead of the backwards.

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
    """Yield forwards, and after the stage's delay backwards and updates, with their weight versions."""
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
    """Yield the micro-batches of each batch, then its update."""
    for n in batches:
        for op, j in alternate(range(schedule.micro), schedule.ahead[stage], "forward"):
            yield Action(Op.FORWARD if op == "F" else Op.BACKWARD, n, n, j)
        yield Action(Op.UPDATE, n, n)


def forward_only(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """Yield forwards, and after the stage's delay updates."""
    micro_batches = range(schedule.micro) if schedule.micro > 1 else (None,)
    version = 0
    for op, n in alternate(batches, schedule.delays[stage], schedule.order):
        if op == "F":
            for j in micro_batches:
                yield Action(Op.FORWARD, n, version, j)
        else:
            yield Action(Op.UPDATE, n, version)
            version += 1


def followed_up(actions: Iterable[Action], op: Op, lag: int) -> Iterator[Action]:
    """Add an op for each batch after the updates of `lag` more batches, and for the last batches at the end.

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
    """Add the messages: each is received just before its use and sent right after it is made.

    A recomputation needs no gradient, so the gradient is received after it. Replicas all-reduce after these messages.
    """
    first, last = stage == 0, stage == schedule.stages - 1
    messages = (ACTIVATION, *schedule.credit.messages)
    sent = [m for m in messages if m.leaves(first=first, last=last)]
    before: dict[Op | None, list[Op]] = {}  # what precedes an op
    for message in messages:
        if message.arrives(first=first, last=last):
            before.setdefault(message.needed_by, []).append(message.receive)
    after: dict[Op | None, list[Op]] = {}  # what follows it
    at_last: dict[Op | None, list[Op]] = {}  # what follows that of the last micro-batch
    for message in sent:
        (at_last if message.whole_batch else after).setdefault(message.made_by, []).append(message.send)
    if schedule.turns:
        after.setdefault(Op.FORWARD, []).extend([TURN.receive] * (not last) + [TURN.send] * (not first))
    before.setdefault(Op.UPDATE, []).extend(_before_update(schedule, first=first, last=last))
    if schedule.norms and not last:
        after.setdefault(Op.UPDATE, []).append(CLIP.send)
    for action in actions:
        op, n, _, j = action
        for each in before.get(op, ()):
            yield Action(each, n, None, j)
        yield action
        for each in after.get(op, ()):
            yield Action(each, n, None, j)
        if j in (None, schedule.micro - 1):
            for each in at_last.get(op, ()):
                yield Action(each, n)


def _before_update(schedule: Schedule, *, first: bool, last: bool) -> list[Op]:
    """Return the messages before an update: the all-reduce, and norms for global clipping."""
    share = [SHARE.send, SHARE.receive] if schedule.replicas > 1 else []
    if not schedule.norms:
        return share
    return [*share, *([] if last else [NORMS.receive]), *([] if first else [NORMS.send, CLIP.receive])]


def stream(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """Yield the whole stream of one stage, computations and messages.

    Example:
        >>> from freewheel.credit import Chain
        >>> schedule = Schedule(credit=Chain(), delays=(1, 0))
        >>> " ".join(map(str, stream(schedule, 0, range(2))))
        'F0@0 a0> F1@0 a1> >g0 B0@0 U0@0 >g1 B1@0 U1@1'
    """
    return wire(schedule, stage, schedule.credit.actions(schedule, stage, batches))
