"""Extensions from outside the library: a credit with a message, a correction, a distribution, a method, a runtime.

All that they import is public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import freewheel as fw
from freewheel.plan import Action, Message, Op, Schedule, forward_only
from freewheel.runtime import LocalRun, Runtime
from freewheel.stage import Blueprint, Live, Stage, Verbs, to_device

# -- a credit: the loss itself, from the last stage to all -----------------------------------------------------------

LOSS = Message("l", "loss", way=-1, made_by=Op.FORWARD, needed_by=Op.UPDATE, broadcast=True)


@dataclass(frozen=True, kw_only=True)
class Decay(fw.Credit):
    """Every weight shrinks in proportion to the loss: w ← w - lr · rate · loss · w. It learns nothing useful."""

    name: ClassVar[str] = "decay"
    family: ClassVar[str] = "decay"
    learns_by: ClassVar[Op] = Op.FORWARD

    rate: float = 0.1

    @property
    def messages(self) -> tuple[Message, ...]:
        return (LOSS,)

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        return forward_only(schedule, stage, batches)

    def check_replicas(self, replicas: int, pipeline: fw.Pipeline) -> None:
        raise ValueError(f"replicas={replicas} with credit='decay': losses are not combined; use one replica")

    def check(self, pipeline: fw.Pipeline) -> None:
        if pipeline.micro > 1:
            raise ValueError(f"micro={pipeline.micro}: under credit='decay' a batch is taken whole; leave it out")

    def build(self, blueprint: Blueprint) -> Stage:
        return DecayStage(blueprint, self)


class DecayStage(Stage):
    """Holds the losses that have come, by batch."""

    def __init__(self, blueprint: Blueprint, decay: Decay) -> None:
        super().__init__(blueprint)
        self._decay = decay
        self._forget()

    def _forget(self) -> None:
        self._known: dict[int, Tensor] = {}
        self._gradients: list[Tensor | None] = []

    def _make_weights(self) -> Live:
        return Live(self.module)

    def verbs(self) -> Verbs:
        def receive(unit: tuple[int, int], loss: Tensor) -> None:
            self._known[unit[0]] = to_device(loss, self.device)

        return {**super().verbs(), LOSS.send: lambda unit: self._known[unit[0]], LOSS.receive: receive}

    def forward(self, unit: Any, x: Any, target: Any = None, size: int = 0, share: float = 1.0, weight: float = 1.0):
        with torch.no_grad():
            out = self._call(unit, to_device(x, self.device), target)
        if self.is_last:
            self._known[unit[0]] = out
            self.losses.append((out, size))
        return out

    def update(self, batch: int) -> None:
        loss = self._known.pop(batch)
        self._gradients = [self._decay.rate * loss * w.detach() for w in self.weights.live]
        super().update(batch)

    def _update(self) -> None:
        self._apply(self._gradients, self.weights.live)

    def contribution(self) -> list[Tensor | None]:
        return self._gradients

    def all_reduce(self, contributions: Sequence[Any]) -> None:
        raise NotImplementedError

    def norms(self) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(g) for g in self._gradients if g is not None])

    def pending(self) -> dict[str, Any]:
        return {**super().pending(), "known": self._known}

    def restore(self, pending: dict[str, Any]) -> None:
        super().restore(pending)
        self._known = to_device(pending["known"], self.device)


# -- a correction, as in docs/guides/extending.md ----------------------------------------------------------------------


@dataclass(frozen=True)
class HeavyBall(fw.Correction):
    """Momentum on the gradient, with its state in the open."""

    decay: float = 0.9

    def init(self, site, weights):
        return {"velocity": [torch.zeros_like(w) for w in weights]}

    def update(self, step, state):
        ball = [v if g is None else self.decay * v + g for g, v in zip(step.gradients, state["velocity"])]
        found = fw.map_gradients(lambda g, v: v, step.gradients, ball)  # None stays None
        return step._replace(gradients=found), {"velocity": ball}


# -- a tangent distribution ------------------------------------------------------------------------------------------


class Uniform(fw.Distribution):
    """Evenly between ±√3, which has variance 1."""

    def draw(self, out, generator):
        return out.uniform_(-(3**0.5), 3**0.5, generator=generator)


# -- a method --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LateMomentum(fw.Method):
    """PipeDream's delays with twice the staleness, and momentum on the gradient."""

    name: ClassVar[str] = "late-momentum"

    decay: float = 0.5

    def pipeline(self, k: int) -> fw.Pipeline:
        delays = tuple(2 * (k - 1 - i) for i in range(k))
        return fw.Pipeline(title=self.name, delays=delays, corrections=[HeavyBall(self.decay)])


# -- a runtime ---------------------------------------------------------------------------------------------------------


class LastFirst(Runtime):
    """One thread runs one action at a time, of the last stage that can go on."""

    def run(self, run):
        cuts = []
        run.on_complete = cuts.append
        with run.begun() as stages:
            local = LocalRun(run, stages)
            run.feed.on_demand(local.deliver)
            streams = {interpreter: interpreter.actions() for interpreter in reversed(local.interpreters)}
            waiting = {interpreter: next(actions, None) for interpreter, actions in streams.items()}
            while any(waiting.values()):
                able = next(i for i, action in waiting.items() if action is not None and i.ready(action))
                able.execute(waiting[able])
                waiting[able] = next(streams[able], None)
                while cuts:
                    cut = cuts.pop(0)
                    if run.on_cut(cut):
                        return local.outcome(cut)
            return local.outcome(None)
