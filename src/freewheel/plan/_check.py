"""The rules a plan must keep, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable

from freewheel.plan._actions import DIRECTION, Action, Op
from freewheel.plan._clock import Place, Streams, StuckError, channel_of, march
from freewheel.plan._draw import draw
from freewheel.plan._schedule import Schedule


class PlanError(ValueError):
    """A plan breaks a rule; the message names the cell, the rule, and shows the cell in the drawing."""


def check(schedule: Schedule, batches: int, streams: Streams) -> None:
    """Raises `PlanError` at the first action, in the order of time, that breaks a rule.

    The rules: every stage forwards, learns from and updates with every batch once and in order; nothing is used
    before it is there (causality); every weight version is the one that `weights` promises; the staleness is the
    declared one; sends and receives match; no stage waits for ever with the given queues (deadlock).
    """

    def refuse(place: Place, rule: str) -> PlanError:
        stage, i = place
        cell = streams[stage][i] if i < len(streams[stage]) else "the end"
        mark = place if i < len(streams[stage]) else None
        drawing = draw(schedule, batches, streams, mark=mark)
        return PlanError(f"plan refused at stage {stage}, {cell}: {rule}\n{drawing}")

    stages = [_Stage(schedule, batches, stage) for stage in range(schedule.stages)]
    unread: dict[Place, Action] = {}
    try:
        for place, action, source in march(schedule, streams):
            if source is not None:
                sent = unread.pop(source)
                if (sent.batch, sent.micro) != (action.batch, action.micro):
                    raise refuse(place, f"the message waiting there is {sent} of stage {source[0]}")
            broken = stages[place[0]].broken(action)
            if broken:
                raise refuse(place, broken)
            if action.op.is_send:
                unread[place] = action
    except StuckError as stuck:
        place = stuck.places[0]
        action = streams[place[0]][place[1]]
        letter, boundary = channel_of(action.op, place[0])
        if DIRECTION[letter] and not 0 <= boundary < schedule.stages - 1:
            raise refuse(place, "there is no stage on that side") from None
        if action.op.is_send:
            after = place[0] + (1 if boundary == place[0] else -1)
            other = f"stage {after}" if DIRECTION[letter] else "the other replicas"
            rule = f"it waits for ever: the queue to {other} stays full"
        else:
            rule = f"it waits for ever: no {letter}{action.batch} comes (deadlock or missing send)"
        raise refuse(place, rule) from None
    if unread:
        place = min(unread)
        raise refuse(place, "nobody receives it")
    for stage, state in enumerate(stages):
        left = state.unfinished()
        if left:
            raise refuse((stage, len(streams[stage])), left)


class _Stage:
    """What one stage has done so far, and whether its next action may follow."""

    def __init__(self, schedule: Schedule, batches: int, stage: int) -> None:
        self.schedule, self.batches = schedule, batches
        self.first, self.last = stage == 0, stage == schedule.stages - 1
        self.delay = schedule.delays[stage]
        self.micro = schedule.micro
        self.backwards = schedule.goes_backward
        self.predicts = schedule.credit == "synthetic" and not self.last
        self.done: dict[Op, dict[tuple[int, int], int | None]] = {op: {} for op in Op}
        self._rules: dict[Op, Callable[[Action, tuple[int, int]], str | None]] = {
            Op.FORWARD: self._forward,
            Op.RECOMPUTE: self._recompute,
            Op.BACKWARD: self._backward,
            Op.UPDATE: self._update,
            Op.FIT: self._fit,
        }

    @property
    def version(self) -> int:
        return len(self.done[Op.UPDATE])

    def broken(self, action: Action) -> str | None:
        """The rule that this action breaks, or None; the action then counts as done."""
        unit = (action.batch, action.micro or 0)
        if unit in self.done[action.op]:
            return "it is done a second time"
        rule = self._rules.get(action.op, self._message)
        fault = rule(action, unit)
        self.done[action.op][unit] = action.version
        return fault

    def unfinished(self) -> str | None:
        learning = ((Op.BACKWARD, self.micro * self.backwards), (Op.UPDATE, 1), (Op.FIT, int(self.predicts)))
        for op, count in ((Op.FORWARD, self.micro), *learning):
            if len(self.done[op]) != self.batches * count:
                return f"{len(self.done[op])} of {self.batches * count} {op.name.lower()}s are there"
        return None

    def _next(self, op: Op, unit: tuple[int, int]) -> str | None:
        expected = divmod(len(self.done[op]), self.micro if op not in (Op.UPDATE, Op.FIT) else 1)
        if unit != expected or unit[0] >= self.batches:
            return f"out of order: the next {op.name.lower()} here is of batch {expected[0]}"
        return None

    def _sees(self, action: Action, version: int | None, why: str) -> str | None:
        return None if action.version == version else f"it must see version {version}, {why}"

    def _forward(self, action: Action, unit: tuple[int, int]) -> str | None:
        if not self.first and unit not in self.done[Op.RECEIVE_ACTIVATION]:
            return "its input has not been received"
        return self._next(Op.FORWARD, unit) or self._sees(action, self.version, "the newest there is")

    def _recompute(self, action: Action, unit: tuple[int, int]) -> str | None:
        if not self.backwards or self.schedule.weights != "recompute" or not self.delay:
            return "only a late stage under weights='recompute' redoes a forward"
        if unit not in self.done[Op.FORWARD] or unit in self.done[Op.BACKWARD]:
            return "there is no stored input of that batch"
        return self._sees(action, self.version, "the newest there is")

    def _backward(self, action: Action, unit: tuple[int, int]) -> str | None:
        if not self.backwards:
            return "there are no backwards under credit='forward'"
        if unit not in self.done[Op.FORWARD]:
            return "its forward has not been done"
        if self.schedule.sends_errors and not self.last and unit not in self.done[Op.RECEIVE_ERROR]:
            return "its error has not been received"
        if self.schedule.waits_for_gradients and not self.last and unit not in self.done[Op.RECEIVE_GRADIENT]:
            return "its gradient has not been received"
        fault = self._next(Op.BACKWARD, unit)
        if fault:
            return fault
        weights = self.schedule.weights
        if self.delay and weights == "recompute" and self.done[Op.RECOMPUTE].get(unit) != self.version:
            return "its forward has not been redone with the newest weights"
        if self.delay and weights in ("stash", "predict"):
            fault = self._sees(action, self.done[Op.FORWARD][unit], f"as its forward did (weights={weights!r})")
        else:
            fault = self._sees(action, self.version, f"the newest there is (weights={weights!r})")
        return fault or (self._stale(unit[0]) if self.micro == 1 else None)

    def _stale(self, batch: int) -> str | None:
        """Whether the stage has forwarded as far beyond the batch it now learns from as it declares."""
        # Backward-first, the round's own forward is still to come.
        to_come = self.schedule.order == "backward" and self.delay > 0
        ahead = len(self.done[Op.FORWARD]) // self.micro - 1 - batch + to_come
        drained = len(self.done[Op.FORWARD]) == self.batches * self.micro
        if ahead != self.delay and not (drained and ahead <= self.delay + to_come):
            return f"the stage has forwarded {ahead} batches beyond it, but the declared delay is {self.delay}"
        return None

    def _update(self, action: Action, unit: tuple[int, int]) -> str | None:
        learns = Op.BACKWARD if self.backwards else Op.FORWARD
        if any((unit[0], j) not in self.done[learns] for j in range(self.micro)):
            return f"its {learns.name.lower()} has not been done"
        if not self.backwards and not self.last and unit not in self.done[Op.RECEIVE_DERIVATIVE]:
            return "its directional derivative has not been received"
        if self.schedule.norms and not self.first and unit not in self.done[Op.RECEIVE_CLIP]:
            return "the global gradient norm is not known yet"
        if self.schedule.replicas > 1 and unit not in self.done[Op.RECEIVE_SHARES]:
            return "the shares of the other replicas have not been received"
        fault = self._next(Op.UPDATE, unit) or self._sees(action, self.version, "the newest there is")
        return fault or (None if self.backwards else self._stale(unit[0]))

    def _fit(self, action: Action, unit: tuple[int, int]) -> str | None:
        if not self.predicts:
            return "only a stage under credit='synthetic' that is not the last has a predictor to fit"
        if unit not in self.done[Op.BACKWARD]:
            return "its backward has not been done"
        if unit not in self.done[Op.RECEIVE_GRADIENT]:
            return "its gradient has not been received"
        fault = self._next(Op.FIT, unit) or self._sees(action, len(self.done[Op.FIT]), "the fits so far")
        return fault or self._lags(unit[0])

    def _lags(self, batch: int) -> str | None:
        behind = self.version - 1 - batch
        drained = self.version == self.batches
        if behind != self.schedule.lag and not (drained and 0 <= behind < self.schedule.lag):
            return f"the stage has learned from {behind} batches beyond it, but the declared lag is {self.schedule.lag}"
        return None

    def _message(self, action: Action, unit: tuple[int, int]) -> str | None:
        if action.op is Op.SEND_SHARE:
            return self._share(unit)
        if action.op is Op.SEND_ACTIVATION and unit not in self.done[Op.FORWARD]:
            return "there is nothing to send: its forward has not been done"
        if action.op is Op.SEND_GRADIENT and unit not in self.done[Op.BACKWARD]:
            return "there is nothing to send: its backward has not been done"
        if action.op is Op.SEND_ERROR and unit not in self.done[Op.FORWARD if self.last else Op.RECEIVE_ERROR]:
            return "there is nothing to send: its error is not known here"
        if action.op is Op.SEND_DERIVATIVE:
            known = self.done[Op.FORWARD if self.last else Op.RECEIVE_DERIVATIVE]
            if (unit[0], self.micro - 1 if self.last else 0) not in known:
                return "there is nothing to send: its directional derivative is not known here"
        return None

    def _share(self, unit: tuple[int, int]) -> str | None:
        if self.schedule.replicas == 1:
            return "there are no other replicas"
        known = Op.BACKWARD if self.backwards else Op.FORWARD if self.last else Op.RECEIVE_DERIVATIVE
        units = {(unit[0], j) for j in range(self.micro)} if known is not Op.RECEIVE_DERIVATIVE else {unit}
        return None if units <= self.done[known].keys() else "there is nothing to send: its gradient is not known here"
