"""The base class of stages: a module and its optimizer, from the gradients of a batch to the update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.corrections import Gradients, Site, StageCorrections
from freewheel.plan import CLIP, NORMS, SHARE, Op, Unit
from freewheel.stage._blueprint import Blueprint
from freewheel.stage._compiled import CompiledFunction
from freewheel.stage._copies import copied
from freewheel.stage._gradients import add, align_gradient
from freewheel.stage._groups import make_watchable
from freewheel.stage._held import Holders
from freewheel.stage._hooks import check_hooks, gradient_hooks, with_hooks
from freewheel.stage._launch import Launcher
from freewheel.stage._loss import checked_loss, loss_of
from freewheel.stage._random import SeededDraws
from freewheel.stage._state import align_state, load_tensors, scratch_buffers, step_scheduler, tensors_of
from freewheel.stage._trees import to_device
from freewheel.stage._weights import Live, WeightVersions

Tree = Any  # a tensor, or tuples, lists and dicts of them
Verbs = dict[Op, Callable[..., Any]]  # computation: f(unit); send: f(unit) -> message; receive: f(unit, message)


class Stage(ABC):
    """A module with its optimizer. Each credit has a subclass that learns from a batch."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint, self.options = blueprint, blueprint.options
        self.index, self.replica, self.device = blueprint.index, blueprint.replica, blueprint.device
        self.config, self.credit = self.options.config, self.options.credit
        schedule = self.schedule = self.options.schedule
        self.module = blueprint.module
        if self.replica:
            self.module = with_hooks(copied(self.module), gradient_hooks(self.module))
        self._loss_function = loss_of(self.module, self.config.loss)
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
        if blueprint.optimizer is not None:
            self.optimizer, self.scheduler = blueprint.make_optimizer(blueprint.optimizer, blueprint.named(self.module))
        self.first_batch = 0  # batches trained in earlier runs, so that random numbers do not repeat
        self.epoch = 0  # of the batch that is being forwarded, including earlier runs
        self.version = 0
        self.losses: list[tuple[Tensor, int]] = []  # of the last action, with the number of samples
        self.first_micro_batch = self.replica * schedule.micro  # numbered across all replicas
        self.is_last = self.index == schedule.stages - 1
        self.delay = schedule.delays[self.index]
        self.corrections = StageCorrections(self.options.corrections, Site(self.index, schedule.stages, self.delay))
        self.weights: WeightVersions = Live(self.module)
        self.launch = Launcher()
        self._compute: CompiledFunction | None = None  # in place of `_plain_call`
        self._besides: Tree = None  # what the last forward has computed besides its result
        self.collects = False  # whether the weights hold the gradient of earlier batches
        self.retains = False  # whether to retain what a checkpoint needs
        self.measures = False  # whether to measure the norm of each gradient
        self.gradient_norm: Tensor | None = None  # of the last update, before clipping
        self._draws = False  # whether the last forward has drawn random numbers
        self._checkpoints = ""  # the kind of `torch.utils.checkpoint` that it has used
        self._edits = True  # whether the module changes its input in place, detected in the first forward of a run
        self._learning: Unit = 0, 0  # the batch of the update under way
        self._later_norms = torch.zeros(0)  # of the gradients of all later stages
        self._norm: Tensor | None = None  # over all stages, where clipping is global

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Start a run with an empty pipeline, after this many batches and epochs in earlier runs."""
        self.first_batch, self.epoch, self.version, self.losses = batches_before, epochs_before, 0, []
        self.weights, self.gradient_norm = self._make_weights(), None
        self.corrections.fixed = self.launch.fixed
        if self.optimizer is not None:
            align_state(self.optimizer)
        self._edits = True
        if self._compute is not None:
            self._compute.refresh()

    def shift(self, batches: int) -> None:
        """Number the pending batches as if so many more had been trained before them."""
        self.first_batch += batches

    def repeat_update(self) -> None:
        """Count an update that a launcher has repeated."""
        self.corrections.count()
        self._stepped()

    def end(self) -> None:
        """End a run and drop its state."""
        self.weights = Live(self.module)
        self._forget()

    def check(self) -> None:
        """Reject a module that this kind of stage would not train right."""
        check_hooks(self.module, self.index)
        if self._compute is not None:
            self._compute.check(self.device)

    def check_unchanged(self) -> None:
        """Reject a module whose settings have changed in the present run, which compiled code does not see."""
        if self._compute is not None:
            self._compute.check_unchanged()

    @abstractmethod
    def _make_weights(self) -> WeightVersions:
        """Return the weight versions for a run."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop pending batches."""

    @abstractmethod
    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Run the module on a micro-batch and return the next stage's input; the last stage returns its loss.

        `share` is the micro-batch's share of the replica's samples, `weight` the replica's share of the batch. None
        stands for a micro-batch without samples.
        """

    def verbs(self) -> Verbs:
        """Return the function of each op besides forwards and activations. A credit adds its own."""
        return {
            Op.UPDATE: lambda unit: self.update(unit[0]),
            SHARE.send: lambda unit: self.contribution(),
            SHARE.receive: lambda unit, contributions: self.all_reduce(contributions),
            NORMS.send: lambda unit: self._all_norms(),
            NORMS.receive: lambda unit, norms: setattr(self, "_later_norms", norms),
            CLIP.send: lambda unit: self._norm,
            CLIP.receive: lambda unit, norm: setattr(self, "_norm", norm),
        }

    def _call(self, unit: Unit, x: Tree, target: Tree) -> Tree:
        """Run the module, and the loss after the last one, with the random numbers of this unit."""
        with self.config.casting(self.device), self._draws_of(unit) as draws:
            out, self._besides = (self._compute or self._plain_call)(x, target)
        self._draws, self._checkpoints = draws.used, draws.saved
        return out

    def _draws_of(self, unit: Unit) -> SeededDraws:
        """Return the random numbers of a unit."""
        return self.launch.draws(*self.key_of(unit))

    def key_of(self, unit: Unit) -> tuple[int, int, int, int]:
        """Return what the seed of a unit's random numbers is made from."""
        batch, micro = unit
        return self.config.seed, self.index, self.first_batch + batch, self.first_micro_batch + micro

    def _plain_call(self, x: Tree, target: Tree) -> tuple[Tree, Tree]:
        """Return the stage's result, and what else its credit needs of the forward."""
        out = self.module(x)
        return self._finish(out, target) if self.is_last else out, None

    def discards(self) -> AbstractContextManager[None]:
        """Return a context that undoes changes to buffers, for calls that are only tried."""
        return scratch_buffers(self.module)

    def _holders(self) -> Holders:
        """Return what holds the tensors and settings that `_plain_call` uses."""
        return Holders({"": self.module}, loss=self._loss_function if self.schedule.gets_targets(self.index) else None)

    def _finish(self, out: Tree, target: Tree) -> Tree:
        """Return the last stage's result from its output."""
        return self._loss(out, target)

    def _loss(self, out: Tree, target: Tree) -> Tensor:
        return checked_loss(self._loss_function, out, to_device(target, self.device))

    @property
    def overlaps(self) -> bool:
        """Whether forwards may run beside what `beside_forwards` returns, each on a thread of its own."""
        return self.options.overlaps(self.index)

    def beside_forwards(self) -> Verbs:
        """Return functions for ops that may run beside forwards."""
        return {}

    @abstractmethod
    def contribution(self) -> Tree:
        """Return this replica's contribution to the all-reduce of the next update."""

    @abstractmethod
    def all_reduce(self, contributions: Sequence[Tree]) -> None:
        """Combine the contributions of all replicas, in rank order, so that all make the same update."""

    @abstractmethod
    def norms(self) -> Tensor:
        """Return the norm of each weight's gradient, for global clipping."""

    @abstractmethod
    def _update(self) -> None:
        """Apply the gradient to the newest weights."""

    def update(self, batch: int) -> None:
        """Make the update of a batch."""
        if self.schedule.norms and self.index == 0:
            self._norm = torch.linalg.vector_norm(self._all_norms())
        if self.measures:
            self.gradient_norm = torch.linalg.vector_norm(self.norms())
        self._learning = batch, 0
        self._update()

    def _all_norms(self) -> Tensor:
        norms = self.norms()
        return torch.cat([norms, self._later_norms.to(norms)])

    def _apply(self, gradients: Gradients, stale_weights: Sequence[Tensor]) -> None:
        """Update with the gradients of a batch, taken at the stale weights."""
        skipped = self.launch("update", self._learning, self._optimize, gradients, stale_weights)
        self.corrections.count()
        if not skipped:
            self._stepped()
        self.version += 1

    def _optimize(self, unit: Unit, gradients: Gradients, stale_weights: Sequence[Tensor]) -> bool:
        """Step the optimizer; return whether a correction has skipped that."""
        live = self.weights.live
        with torch.no_grad():
            step = self.corrections.update(gradients, live, stale_weights)
            if step.skip and self.schedule.norms:
                raise ValueError("clip_scope='global' with a correction that skips updates: use clip_scope='stage'")
            gradients = step.gradients
            if self.collects:
                gradients = [add(weight.grad, g) for weight, g in zip(live, gradients)]
            for weight, gradient in zip(live, gradients):
                weight.grad = align_gradient(gradient, weight)
            self.collects = step.skip
            if not step.skip:
                self._clip()
                self._step(step.scale)
            self.corrections.updated(live)
            self.weights.updated()
        return step.skip

    def _clip(self) -> None:
        limit = self.config.clip
        if limit is not None and self.schedule.norms:
            assert self._norm is not None
            nn.utils.clip_grads_with_norm_(self._trained(), limit, self._norm)
        elif limit is not None:
            nn.utils.clip_grad_norm_(self._trained(), limit)

    def _trained(self) -> list[nn.Parameter]:
        """Return all parameters that an update changes."""
        return self.weights.live

    def _step(self, scale: float = 1.0) -> None:
        """Step the optimizer and clear the gradients."""
        if self.optimizer is None:
            return
        with self.launch.sized(self.optimizer, scale):
            self.optimizer.step()
        for weight in self.weights.live:
            weight.grad = None

    def _stepped(self) -> None:
        if self.config.scheduler_every == "batch" and not self.corrections.leads:
            step_scheduler(self.scheduler)

    def end_epoch(self) -> None:
        """Step a scheduler that counts epochs, after the last update of one."""
        if self.config.scheduler_every == "epoch" and not self.corrections.leads:
            step_scheduler(self.scheduler)

    def step_on_plateau(self, value: float) -> None:
        """Step a scheduler that waits for a plateau of this number, between two runs."""
        step_scheduler(self.scheduler, value)

    def state(self) -> dict[str, Any]:
        """Return a copy of weights, buffers, optimizer, scheduler, corrections and head."""
        return {
            "module": {name: t.detach().clone() for name, t in tensors_of(self.module).items()},
            "optimizer": deepcopy(self.optimizer.state_dict()) if self.optimizer else None,
            "scheduler": deepcopy(self.scheduler.state_dict()) if self.scheduler else None,
            "corrections": deepcopy(self.corrections.state()),
            "gradients": [None if w.grad is None else w.grad.clone() for w in self.weights.live],
            "head": deepcopy(self.head_state()),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore such a copy; batches in flight are dropped."""
        load_tensors(self.module, state["module"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
            make_watchable(self.optimizer)
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.corrections.load(to_device(state["corrections"], self.device))
        for weight, gradient in zip(self.weights.live, state["gradients"]):
            weight.grad = to_device(gradient, weight.device)
        self.collects = any(gradient is not None for gradient in state["gradients"])
        self.load_head(state["head"])

    @property
    def head(self) -> nn.Module | None:
        """The stage's auxiliary network, if any."""
        return None

    def head_state(self) -> dict[str, Any] | None:
        """Return the state of the auxiliary network, by reference."""
        return None

    def load_head(self, state: dict[str, Any] | None) -> None:  # noqa: B027
        """Restore such a state."""

    def pending(self) -> dict[str, Any]:
        """Return the state of pending batches, in plain containers, by reference."""
        return {"version": self.version, "epoch": self.epoch, "edits": self._edits}

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore pending batches, between `begin` and the first action of a run."""
        self.version, self.epoch = pending["version"], pending["epoch"]
        self._edits = pending["edits"]

    def encode(self, message: Tree) -> Tree:
        """Convert a message of this stage into plain containers."""
        return message

    def decode(self, message: Tree) -> Tree:
        """Invert `encode`."""
        return message
