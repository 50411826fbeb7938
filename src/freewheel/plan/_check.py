"""Plan validation, before anything runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from freewheel.plan._actions import ACTIVATION, CLIP, SHARE, Action, Op, Unit
from freewheel.plan._clock import Position, Streams, StuckError, march, routes
from freewheel.plan._draw import draw
from freewheel.plan._schedule import Schedule


class PlanError(ValueError):
    """A plan breaks a rule; the message names the cell and the rule, and marks the cell in the drawing."""


def check(schedule: Schedule, batches: int, streams: Streams) -> None:
    """Raise `PlanError` at the first action, in time order, that breaks a rule.

    The rules: every stage forwards, learns from and updates with every batch once and in order; nothing is used
    before it exists (causality); every weight version is the one that `weights` promises; the staleness is the
    declared one; sends and receives match; no stage deadlocks with the given queues.
    """

    def refuse(position: Position, rule: str) -> PlanError:
        stage, i = position
        cell = streams[stage][i] if i < len(streams[stage]) else "the end"
        mark = position if i < len(streams[stage]) else None
        drawing = draw(schedule, batches, streams, mark=mark)
        return PlanError(f"plan refused at stage {stage}, {cell}: {rule}\n{drawing}")

    stages = [StageRules(schedule, batches, stage) for stage in range(schedule.stages)]
    unread: Counter[Position] = Counter()  # sends, each with the number of stages that have not received it
    try:
        for position, action, source in march(schedule, streams):
            if source is not None:
                unread[source] -= 1
                sent = streams[source[0]][source[1]]
                if sent.unit != action.unit:
                    raise refuse(position, f"the message waiting there is {sent} of stage {source[0]}")
            broken = stages[position[0]].broken(action)
            if broken:
                raise refuse(position, broken)
            if action.op.is_send:
                unread[position] = len(routes(schedule, position[0])[action.op])
    except StuckError as stuck:
        stage, i = stuck.positions[0]
        raise refuse((stage, i), _why_stuck(schedule, stage, streams[stage][i])) from None
    left_over = [position for position, count in unread.items() if count]
    if left_over:
        raise refuse(min(left_over), "nobody receives it")
    for stage, rules in enumerate(stages):
        left = rules.unfinished()
        if left:
            raise refuse((stage, len(streams[stage])), left)


def _why_stuck(schedule: Schedule, stage: int, action: Action) -> str:
    """Explain why a stage waits forever at a message."""
    found = routes(schedule, stage).get(action.op)
    if found is None:
        replicas = action.op in (SHARE.send, SHARE.receive)
        return "there are no other replicas" if replicas else "there is no stage on that side"
    if action.op.is_receive:
        return f"it waits forever: no {action.op.channel}{action.batch} comes (deadlock or missing send)"
    other = f"stage {stage + (1 if found[0].boundary == stage else -1)}" if len(found) == 1 else "another stage"
    other = "the other replicas" if action.op is SHARE.send else other
    return f"it waits forever: the queue to {other} stays full"


class StageRules:
    """The progress of one stage through its stream, and the rules for its next action."""

    def __init__(self, schedule: Schedule, batches: int, stage: int) -> None:
        self.schedule, self.batches, self.credit = schedule, batches, schedule.credit
        self.first, self.last = stage == 0, stage == schedule.stages - 1
        self.delay = schedule.delays[stage]
        self.micro = schedule.micro
        self.done: defaultdict[Op, dict[Unit, int | None]] = defaultdict(dict)
        self._rules: dict[Op, Callable[[Action], str | None]] = {
            Op.FORWARD: self._forward,
            Op.RECOMPUTE: self._recompute,
            Op.BACKWARD: self._backward,
            Op.UPDATE: self._update,
            SHARE.send: self._contribution,
        }
        if self.credit.extra is not None:
            self._rules[self.credit.extra] = self._extra

    @property
    def version(self) -> int:
        """The version of the weights."""
        return len(self.done[Op.UPDATE])

    def broken(self, action: Action) -> str | None:
        """Record an action as done and return the rule that it breaks, or None."""
        if action.unit in self.done[action.op]:
            return "it is done a second time"
        rule = self._rules.get(action.op, self._message)
        fault = self._needs(action) or rule(action) or self.credit.broken_rule(action, self)
        self.done[action.op][action.unit] = action.version
        return fault

    def unfinished(self) -> str | None:
        """Describe a computation that is missing at the end, or return None."""
        counts = {Op.FORWARD: self.micro, Op.UPDATE: 1}
        if self.schedule.goes_backward:
            counts[Op.BACKWARD] = self.micro
        if self.credit.extra is not None:
            counts[self.credit.extra] = int(not self.last)
        for op, count in counts.items():
            if len(self.done[op]) != self.batches * count:
                return f"it has {len(self.done[op])} of {self.batches * count} {op.noun}s"
        return None

    def _needs(self, action: Action) -> str | None:
        """Describe a missing message that an action needs."""
        for message in (ACTIVATION, *self.credit.messages):
            arrives = message.needed_by is action.op and message.arrives(first=self.first, last=self.last)
            if arrives and action.unit not in self.done[message.receive]:
                return f"its {message.noun} has not been received"
        return None

    def next(self, op: Op, unit: Unit) -> str | None:
        """Describe an op that is out of order."""
        expected = divmod(len(self.done[op]), self.micro if op in (Op.FORWARD, Op.BACKWARD) else 1)
        if unit != expected or unit[0] >= self.batches:
            return f"out of order: the next {op.noun} here is of batch {expected[0]}"
        return None

    def _sees(self, action: Action, version: int | None, why: str) -> str | None:
        return None if action.version == version else f"it must see version {version}, {why}"

    def _forward(self, action: Action) -> str | None:
        return self.next(Op.FORWARD, action.unit) or self._sees(action, self.version, "the newest")

    def _recompute(self, action: Action) -> str | None:
        if not self.schedule.goes_backward or self.schedule.weights != "recompute" or not self.delay:
            return "only a late stage under weights='recompute' recomputes a forward"
        if action.unit not in self.done[Op.FORWARD] or action.unit in self.done[Op.BACKWARD]:
            return "there is no stored input of that batch"
        return self._sees(action, self.version, "the newest")

    def _backward(self, action: Action) -> str | None:
        if not self.schedule.goes_backward:
            return f"there are no backwards under credit={self.credit.name!r}"
        unit, weights = action.unit, self.schedule.weights
        if unit not in self.done[Op.FORWARD]:
            return "its forward has not been done"
        fault = self.next(Op.BACKWARD, unit)
        if fault:
            return fault
        if self.delay and weights == "recompute" and self.done[Op.RECOMPUTE].get(unit) != self.version:
            return "its forward has not been recomputed with the newest weights"
        if self.delay and weights in ("stash", "predict"):
            fault = self._sees(action, self.done[Op.FORWARD][unit], f"as its forward did (weights={weights!r})")
        else:
            fault = self._sees(action, self.version, f"the newest (weights={weights!r})")
        return fault or (self._stale(unit[0]) if self.micro == 1 else None)

    def _stale(self, batch: int) -> str | None:
        """Check how far the stage has forwarded beyond the batch it learns from against the declared delay."""
        # Backward-first, the forward of the round comes later.
        to_come = self.schedule.order == "backward" and self.delay > 0
        ahead = len(self.done[Op.FORWARD]) // self.micro - 1 - batch + to_come
        drained = len(self.done[Op.FORWARD]) == self.batches * self.micro
        if ahead != self.delay and not (drained and ahead <= self.delay + to_come):
            return f"the stage has forwarded {ahead} batches beyond it, but the declared delay is {self.delay}"
        return None

    def _update(self, action: Action) -> str | None:
        unit, learns = action.unit, self.credit.learns_by
        if any((unit[0], j) not in self.done[learns] for j in range(self.micro)):
            return f"its {learns.noun} has not been done"
        if self.schedule.norms and not self.first and unit not in self.done[CLIP.receive]:
            return "the global gradient norm has not been received"
        if self.schedule.replicas > 1 and unit not in self.done[SHARE.receive]:
            return "the contributions of the other replicas have not been received"
        fault = self.next(Op.UPDATE, unit) or self._sees(action, self.version, "the newest")
        return fault or (None if self.schedule.goes_backward else self._stale(unit[0]))

    def _extra(self, action: Action) -> str | None:
        if self.last:
            return f"the last stage has no {action.op.noun} under credit={self.credit.name!r}"
        if action.unit not in self.done[self.credit.learns_by]:
            return f"its {self.credit.learns_by.noun} has not been done"
        done = len(self.done[action.op])
        return self.next(action.op, action.unit) or self._sees(action, done, f"the {action.op.noun}s so far")

    def _message(self, action: Action) -> str | None:
        """Describe a send of something that the stage does not have."""
        for message in (ACTIVATION, *self.credit.messages):
            made = message.made_by
            unit = (action.batch, self.micro - 1) if message.whole_batch else action.unit
            if message.send is action.op and made and unit not in self.done[made]:
                return f"there is nothing to send: its {made.noun} has not been done"
        return None

    def _contribution(self, action: Action) -> str | None:
        learns = self.credit.learns_by
        missing = {(action.batch, j) for j in range(self.micro)} - self.done[learns].keys()
        if missing or self._needs(Action(Op.UPDATE, action.batch)):
            return "there is nothing to send: its gradient is not known here"
        return None
