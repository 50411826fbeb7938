"""One stage: a module, its optimizer, and what it holds between a forward and the update it leads to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._seeds import seed_of
from freewheel.feedback import Feedback
from freewheel.plan import Schedule
from freewheel.stage._corrections import Correction, Gradients, Hooks, Site
from freewheel.stage._heads import Heads
from freewheel.stage._predictors import Predictors
from freewheel.stage._random import SeededDraws
from freewheel.stage._state import load_tensors, scaled, tensors_of
from freewheel.stage._trees import to_device
from freewheel.stage._weights import Live, Weights
from freewheel.tangents import Tangents

Unit = tuple[int, int]  # batch, micro-batch
Tree = Any  # a tensor, or tuples, lists and dicts of them
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """What all stages of a run share."""

    schedule: Schedule
    corrections: tuple[Correction, ...] = ()
    tangents: Tangents = field(default_factory=Tangents)
    heads: Heads = field(default_factory=Heads)
    predictors: Predictors = field(default_factory=Predictors)
    classes: int = 0  # outputs of the network, where heads or predictors need to know
    feedback: Feedback | None = None
    loss: Loss
    clip: float | None = None
    autocast: torch.dtype | None = None
    seed: int = 0
    slow: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # stage -> probability, factor


@dataclass
class Stage(ABC):
    """A module with its optimizer. How it learns from a batch is its kind's own: see `ChainStage`, `ForwardStage`."""

    index: int
    module: nn.Module
    device: torch.device
    options: StageOptions
    optimizer: torch.optim.Optimizer | None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    first_batch: int = 0  # batches trained in earlier runs, so that random numbers do not repeat
    epoch: int = 0  # of the batch that is being forwarded, earlier runs included
    version: int = 0
    losses: list[tuple[Tensor, int]] = field(default_factory=list)  # of the last action, with their samples
    replica: int = 0

    def __post_init__(self) -> None:
        schedule = self.options.schedule
        self.first_piece = self.replica * schedule.micro  # of each batch, counted through all replicas
        self.is_last = self.index == schedule.stages - 1
        self.delay = schedule.delays[self.index]
        self.hooks: list[Hooks] = [
            c.attach(Site(self.index, schedule.stages, self.delay)) for c in self.options.corrections
        ]
        self.hooks = [h for h in self.hooks if type(h) is not Hooks]
        self.weights: Weights = Live(self.module)
        self.collects = False  # whether the weights hold the gradient of earlier batches
        self._draws = True  # whether the module draws random numbers, as its first forward of a run shows
        self._edits = True  # whether the module changes its input in place, likewise
        self.keeps = False  # whether all that a checkpoint needs is held on to

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Starts a run with an empty pipeline, after so many batches and epochs in earlier ones."""
        self.first_batch, self.epoch, self.version, self.losses = batches_before, epochs_before, 0, []
        self.weights = self._make_weights()
        self._draws = self._edits = True

    def end(self) -> None:
        """Lets go of all that a run holds between its batches."""
        self.weights = Live(self.module)
        self._forget()

    @abstractmethod
    def _make_weights(self) -> Weights:
        """The versions of the weights that this kind of stage needs."""

    @abstractmethod
    def _forget(self) -> None:
        """Drops what waits for its update."""

    @abstractmethod
    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Runs the module on a (micro-)batch and returns what the next stage gets; the last stage returns its loss.

        `share` is this micro-batch's share of the replica's samples, `weight` that of these in the whole batch. None
        stands for a micro-batch without samples, and passes.
        """

    # -- calling the module ----------------------------------------------------------------------------------------

    def _call(self, unit: Unit, x: Tree, target: Tree) -> Tree:
        """The module, and the loss behind the last one, with the random numbers of this unit."""
        dtype = self.options.autocast
        if not self._draws and dtype is None:
            return self._plain_call(x, target)
        batch, micro = unit
        draws = SeededDraws(seed_of(self.options.seed, self.index, self.first_batch + batch, self.first_piece + micro))
        casts = torch.autocast(self.device.type, dtype=dtype) if dtype is not None else nullcontext()
        with casts, draws if self._draws else nullcontext():
            out = self._plain_call(x, target)
        self._draws = draws.used
        return out

    def _plain_call(self, x: Tree, target: Tree) -> Tree:
        out = self.module(x)
        return self._finish(out, target) if self.is_last else out

    @abstractmethod
    def _finish(self, out: Tree, target: Tree) -> Tree:
        """What the last stage makes of its output."""

    def _loss(self, out: Tree, target: Tree) -> Tensor:
        loss = self.options.loss(out, to_device(target, self.device))
        if not isinstance(loss, Tensor) or loss.dim():
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss gave {came}: it must give one number, a tensor without dimensions; take its mean()")
        return loss

    # -- update ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def share(self) -> Tree:
        """What the other replicas need to know for the next update."""

    @abstractmethod
    def gather(self, shares: Sequence[Tree]) -> None:
        """Takes the shares of all replicas, in their order: every one of them makes the same update of them."""

    @abstractmethod
    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""

    @abstractmethod
    def update(self, norm: Tensor | None = None) -> None:
        """Applies the gradient to the newest weights; `norm` is the one over all stages where clipping is global."""

    def _apply(self, gradients: Gradients, then: Sequence[Tensor], norm: Tensor | None) -> None:
        """One update with the gradients of a batch, taken at the weights of `then`."""
        with torch.no_grad():
            for hook in self.hooks:
                gradients = hook.gradient(gradients, self.weights.live, then)
            if self.collects:
                gradients = [add(weight.grad, g) for weight, g in zip(self.weights.live, gradients)]
            for weight, gradient in zip(self.weights.live, gradients):
                weight.grad = gradient
            self.collects = sum(hook.skips() for hook in self.hooks) > 0  # every one of them counts the batch
            if not self.collects:
                self._clip(norm)
                self._step()
                self._stepped()
            for hook in self.hooks:
                hook.updated(self.weights.live)
        self._updated()

    def _clip(self, norm: Tensor | None) -> None:
        limit = self.options.clip
        if norm is not None and limit is not None:
            nn.utils.clip_grads_with_norm_(self._learners(), limit, norm)
        elif limit is not None:
            nn.utils.clip_grad_norm_(self._learners(), limit)

    def _learners(self) -> list[nn.Parameter]:
        """All that an update changes."""
        return self.weights.live

    def _step(self) -> None:
        """Lets the optimizer use the gradients that are there."""
        if self.optimizer is None:
            return
        scale = 1.0
        for hook in self.hooks:
            scale *= hook.scale()
        with scaled(self.optimizer, scale):
            self.optimizer.step()
        for weight in self.weights.live:
            weight.grad = None

    def _stepped(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def _updated(self) -> None:
        self.weights.updated()
        self.version += 1

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A copy of all that version N of this stage is: weights, buffers, optimizer, scheduler, corrections, head."""
        return {
            "module": {name: t.detach().clone() for name, t in tensors_of(self.module).items()},
            "optimizer": deepcopy(self.optimizer.state_dict()) if self.optimizer else None,
            "scheduler": deepcopy(self.scheduler.state_dict()) if self.scheduler else None,
            "hooks": [hook.state() for hook in self.hooks],
            "gradients": [None if w.grad is None else w.grad.clone() for w in self.weights.live],
            "head": deepcopy(self.head_state()),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to such a copy; whatever was in flight is gone."""
        load_tensors(self.module, state["module"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        for hook, remembered in zip(self.hooks, state["hooks"]):
            hook.load(remembered)
        for weight, gradient in zip(self.weights.live, state["gradients"]):
            weight.grad = to_device(gradient, weight.device)
        self.collects = any(gradient is not None for gradient in state["gradients"])
        self.load_head(state["head"])

    def head_state(self) -> dict[str, Any] | None:
        """What a small network of the stage's own is, by reference; None where there is none, or none yet."""
        return None

    def load_head(self, state: dict[str, Any] | None) -> None:  # noqa: B027
        """Goes back to such a one."""

    def pending(self) -> dict[str, Any]:
        """What waits for its update, in plain containers, by reference: with `state`, all that the stage holds."""
        return {"version": self.version, "epoch": self.epoch, "draws": self._draws, "edits": self._edits}

    def restore(self, pending: dict[str, Any]) -> None:
        """Takes such things up again; between `begin` and the first action of a run."""
        self.version, self.epoch = pending["version"], pending["epoch"]
        self._draws, self._edits = pending["draws"], pending["edits"]

    def packed(self, message: Tree) -> Tree:
        """What this stage passes on, in plain containers."""
        return message

    def unpacked(self, message: Tree) -> Tree:
        """The same the other way round."""
        return message


def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two gradients, either of which may be missing."""
    return b if a is None else a if b is None else a + b
