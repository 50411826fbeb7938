"""Builders: small pure generators that turn a schedule into each stage's stream of actions.

They are lazy and take any iterable of batch numbers, so that a run need not know its length beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from freewheel.plan._actions import Action, Op
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


def compute(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """A stage's forwards, recomputations, backwards and updates, with the versions each one sees."""
    if schedule.credit == "forward":
        return _without_backward(schedule, stage, batches)
    if schedule.micro > 1:
        return _flushed(schedule, stage, batches)
    if schedule.credit == "synthetic" and stage < schedule.stages - 1:
        return _fitted(_delayed(schedule, stage, batches), schedule.lag)
    return _delayed(schedule, stage, batches)


def _delayed(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
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


def _fitted(actions: Iterable[Action], lag: int) -> Iterator[Action]:
    """Fits the predictor to each batch once `lag` more have been learned from, and to the last ones in the end.

    ::

        lag 1:  F0 B0 U0  F1 B1 U1 S0  F2 B2 U2 S1 | S2
                                                   [drain]
    """
    learned: deque[int] = deque()
    fits = 0
    for action in actions:
        yield action
        if action.op is Op.UPDATE:
            learned.append(action.batch)
            if len(learned) > lag:
                yield Action(Op.FIT, learned.popleft(), fits)
                fits += 1
    for i, n in enumerate(learned):
        yield Action(Op.FIT, n, fits + i)


def _flushed(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    for n in batches:
        for op, j in alternate(range(schedule.micro), schedule.ahead[stage], "forward"):
            yield Action(Op.FORWARD if op == "F" else Op.BACKWARD, n, n, j)
        yield Action(Op.UPDATE, n, n)


def _without_backward(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    pieces = range(schedule.micro) if schedule.micro > 1 else (None,)
    version = 0
    for op, n in alternate(batches, schedule.delays[stage], schedule.order):
        if op == "F":
            for j in pieces:
                yield Action(Op.FORWARD, n, version, j)
        else:
            yield Action(Op.UPDATE, n, version)
            version += 1


def wire(schedule: Schedule, stage: int, actions: Iterable[Action]) -> Iterator[Action]:
    """Adds the messages: whatever is needed is received just before its use, whatever is made is sent at once.

    The recomputation of a forward needs no gradient, so the gradient is received after it. A directional derivative, or
    an error, is passed on before the stage itself learns from it, so that nobody waits for an update. Replicas share
    what they have found once their neighbours have got theirs, and wait for each other's only then. A stage with a
    predictor learns before the gradient is there, and takes it for the fit.
    """
    first, last = stage == 0, stage == schedule.stages - 1
    for action in actions:
        op, n, _, j = action
        if op is Op.FORWARD:
            if not first:
                yield Action(Op.RECEIVE_ACTIVATION, n, None, j)
            yield action
            if not last:
                yield Action(Op.SEND_ACTIVATION, n, None, j)
            if schedule.turns and not last:
                yield Action(Op.RECEIVE_TURN, n)
            if schedule.turns and not first:
                yield Action(Op.SEND_TURN, n)
        elif op is Op.BACKWARD:
            if schedule.sends_errors and not last:
                yield Action(Op.RECEIVE_ERROR, n, None, j)
            if schedule.sends_errors and not first:
                yield Action(Op.SEND_ERROR, n, None, j)
            if schedule.waits_for_gradients and not last:
                yield Action(Op.RECEIVE_GRADIENT, n, None, j)
            yield action
            if schedule.sends_gradients and not first:
                yield Action(Op.SEND_GRADIENT, n, None, j)
        elif op is Op.FIT:
            yield Action(Op.RECEIVE_GRADIENT, n, None, j)
            yield action
        elif op is Op.UPDATE:
            if schedule.credit == "forward" and not last:
                yield Action(Op.RECEIVE_DERIVATIVE, n)
            if schedule.credit == "forward" and not first:
                yield Action(Op.SEND_DERIVATIVE, n)
            if schedule.replicas > 1:
                yield Action(Op.SEND_SHARE, n)
                yield Action(Op.RECEIVE_SHARES, n)
            if schedule.norms and not last:
                yield Action(Op.RECEIVE_NORMS, n)
            if schedule.norms and not first:
                yield Action(Op.SEND_NORMS, n)
                yield Action(Op.RECEIVE_CLIP, n)
            yield action
            if schedule.norms and not last:
                yield Action(Op.SEND_CLIP, n)
        else:
            yield action


def stream(schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
    """The whole stream of one stage: its work and its messages.

    Example:
        >>> schedule = Schedule(delays=(1, 0))
        >>> " ".join(map(str, stream(schedule, 0, range(2))))
        'F0@0 a0> F1@0 a1> >g0 B0@0 U0@0 >g1 B1@0 U1@1'
    """
    return wire(schedule, stage, compute(schedule, stage, batches))
