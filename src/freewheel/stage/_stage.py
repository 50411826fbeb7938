"""One stage: a module, its optimizer, and what it holds between a forward and the update it leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.plan import Schedule
from freewheel.stage._corrections import Correction, Gradients, Hooks, Site
from freewheel.stage._random import SeededDraws, seed_of
from freewheel.stage._state import load_tensors, scaled, scratch_buffers, tensors_of
from freewheel.stage._trees import Shape, flatten, to_device, unflatten
from freewheel.stage._weights import Current, Live, Stash, Weights

Unit = tuple[int, int]  # batch, micro-batch
Tree = Any  # a tensor, or tuples, lists and dicts of them
Loss = Callable[[Any, Any], Tensor]


class Graph(NamedTuple):
    """A forward that waits for its backward."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    places: list[int | None]  # for each output, which of the gradients it takes; None for the loss
    weights: Sequence[Tensor]
    version: int


class Stored(NamedTuple):
    """A forward that will be redone."""

    inputs: Tree
    target: Tree
    share: float


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """What all stages of a run share."""

    schedule: Schedule
    corrections: tuple[Correction, ...] = ()
    loss: Loss
    clip: float | None = None
    autocast: torch.dtype | None = None
    seed: int = 0


@dataclass
class Stage:
    """A module with its optimizer; forward, recompute, backward and update are its only verbs."""

    index: int
    module: nn.Module
    device: torch.device
    options: StageOptions
    optimizer: torch.optim.Optimizer | None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    first_batch: int = 0  # batches trained in earlier runs, so that random numbers do not repeat
    version: int = 0
    losses: list[tuple[Tensor, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        schedule = self.options.schedule
        self.is_last = self.index == schedule.stages - 1
        self.delay = schedule.delays[self.index]
        self.replays = self.delay > 0 and schedule.weights == "recompute"
        self.hooks: list[Hooks] = [
            c.attach(Site(self.index, schedule.stages, self.delay)) for c in self.options.corrections
        ]
        self.hooks = [h for h in self.hooks if type(h) is not Hooks]
        self.weights: Weights = Live(self.module)
        self._stored: dict[Unit, Stored] = {}
        self._graphs: dict[Unit, Graph] = {}
        self._gradients: Gradients = []
        self._then: Sequence[Tensor] = ()
        self._collects = False  # whether the weights hold the gradient of earlier batches
        self._draws = True  # whether the module draws random numbers, as its first forward of a run shows
        self._edits = True  # whether the module changes its input in place, likewise

    def _make_weights(self) -> Weights:
        schedule = self.options.schedule
        if not self.delay or schedule.weights == "recompute":
            return Live(self.module)
        if schedule.weights == "current":
            weights = Current(self.module)
            weights.corrected = self._corrected
            return weights
        gap = self.delay - (schedule.order == "backward")
        return Stash(self.module, predict=gap if schedule.weights == "predict" else 0)

    def _corrected(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        for hook in self.hooks:
            weights = hook.corrected(weights)
        return weights

    def begin(self, batches_before: int) -> None:
        """Starts a run with an empty pipeline, after so many batches in earlier ones."""
        self.first_batch, self.version, self.losses = batches_before, 0, []
        self.weights = self._make_weights()
        self._draws = self._edits = True

    def end(self) -> None:
        """Lets go of all that a run holds between its batches."""
        self.weights = Live(self.module)
        self._stored, self._graphs = {}, {}
        self._gradients, self._then = [], ()

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0) -> Tree:
        """Runs the module on a (micro-)batch and returns what the next stage gets; the last stage returns its loss.

        `share` is this micro-batch's share of the batch. None stands for a micro-batch without samples, and passes.
        """
        if x is None:
            return None
        if self.replays:
            self._stored[unit] = Stored(x, target, share)
            with torch.no_grad():
                leaves, spec, _ = self._run(unit, x, target)
        else:
            leaves, spec = self._record(unit, x, target, share)
        if self.is_last:
            loss = leaves[0].detach()
            self.losses.append((loss, size))
            return loss
        return unflatten([t.detach() if isinstance(t, Tensor) else t for t in leaves], spec)

    def recompute(self, unit: Unit) -> None:
        """Redoes a forward on its stored input with the weights of now.

        The random numbers are those of the forward, and buffers such as running statistics are left as they are.
        """
        if unit not in self._stored:
            return
        x, target, share = self._stored.pop(unit)
        with scratch_buffers(self.module):
            self._record(unit, x, target, share)

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """A forward whose graph is kept."""
        with torch.enable_grad(), self.weights.forward(self.version) as weights:
            leaves, spec, inputs = self._run(unit, x, target)
            outputs = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
            if self.is_last and share != 1.0:
                outputs = [loss * share for loss in outputs]
        tensors = [t for t in leaves if isinstance(t, Tensor)]
        places = [None if self.is_last else i for i, t in enumerate(tensors) if t.requires_grad]
        self._graphs[unit] = Graph(inputs, outputs, places, weights, self.version)
        return leaves, spec

    def _run(self, unit: Unit, x: Tree, target: Tree) -> tuple[list[Any], Shape, list[Tensor]]:
        """The module on its input, the loss behind the last one: flat outputs, and the inputs to differentiate by."""
        given, shape = flatten(to_device(x, self.device))
        inputs: list[Tensor] = []
        if self.index and torch.is_grad_enabled():
            inputs = [t.requires_grad_() for t in given if isinstance(t, Tensor) and t.is_floating_point()]
        # Whether the module edits its input is found out on a copy, the first time; from then on only editors get one.
        used = [t.clone() if isinstance(t, Tensor) else t for t in given] if self._edits else given
        out = self._call(unit, unflatten(used, shape), target)
        self._edits = self._edits and any(isinstance(t, Tensor) and t._version > 0 for t in used)
        leaves, spec = flatten(out)
        return leaves, spec, inputs

    def _call(self, unit: Unit, x: Tree, target: Tree) -> Tree:
        """The module, and the loss behind the last one, with the random numbers of this unit."""
        dtype = self.options.autocast
        if not self._draws and dtype is None:
            return self._plain_call(x, target)
        batch, micro = unit
        draws = SeededDraws(seed_of(self.options.seed, self.index, self.first_batch + batch, micro))
        casts = torch.autocast(self.device.type, dtype=dtype) if dtype is not None else nullcontext()
        with casts, draws if self._draws else nullcontext():
            out = self._plain_call(x, target)
        self._draws = draws.used
        return out

    def _plain_call(self, x: Tree, target: Tree) -> Tree:
        out = self.module(x)
        if not self.is_last:
            return out
        loss = self.options.loss(out, to_device(target, self.device))
        if not isinstance(loss, Tensor) or loss.dim():
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss gave {came}: it must give one number, a tensor without dimensions; take its mean()")
        return loss

    # -- backward and update ---------------------------------------------------------------------------------------

    def backward(self, unit: Unit, gradients: Gradients | None) -> Gradients:
        """Takes the gradient from the next stage, keeps the weights' part, and returns the inputs' part."""
        graph = self._graphs.pop(unit, None)
        if graph is None:
            return ()
        if gradients is not None:
            arrived: Gradients = [None if g is None else to_device(g, self.device) for g in gradients]
            for hook in self.hooks:
                arrived = hook.receive(arrived)
            gradients = arrived
        pairs = [(t, None if i is None else gradients[i]) for t, i in zip(graph.outputs, graph.places)]  # pyright: ignore
        pairs = [(t, g) for t, g in pairs if self.is_last or g is not None]
        wanted = [*graph.inputs, *graph.weights]
        found: Gradients = [None] * len(wanted)
        if pairs and wanted:
            with self.weights.backward():
                found = torch.autograd.grad(
                    [t for t, _ in pairs],
                    wanted,
                    [g for _, g in pairs],
                    allow_unused=True,  # pyright: ignore
                )
        inputs, ours = found[: len(graph.inputs)], found[len(graph.inputs) :]
        self._gradients = ours if not self._gradients else [_add(a, b) for a, b in zip(self._gradients, ours)]
        self._then = graph.weights
        self.weights.release(graph.version)
        return inputs

    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""
        norms = [torch.linalg.vector_norm(g) for g in self._gradients if g is not None]
        return torch.stack(norms) if norms else torch.zeros(0, device=self.device)

    def update(self, norm: Tensor | None = None) -> None:
        """Applies the gradient to the newest weights; `norm` is the one over all stages where clipping is global."""
        with torch.no_grad():
            gradients = self._gradients
            for hook in self.hooks:
                gradients = hook.gradient(gradients, self.weights.live, self._then)
            if self._collects:
                gradients = [_add(weight.grad, g) for weight, g in zip(self.weights.live, gradients)]
            for weight, gradient in zip(self.weights.live, gradients):
                weight.grad = gradient
            self._gradients, self._then = [], ()
            self._collects = sum(hook.skips() for hook in self.hooks) > 0  # every one of them counts the batch
            if not self._collects:
                self._step(norm)
            for hook in self.hooks:
                hook.updated(self.weights.live)
        self.weights.updated()
        self.version += 1

    def _step(self, norm: Tensor | None) -> None:
        if self.optimizer is None:
            return
        limit = self.options.clip
        if norm is not None and limit is not None:
            nn.utils.clip_grads_with_norm_(self.weights.live, limit, norm)
        elif limit is not None:
            nn.utils.clip_grad_norm_(self.weights.live, limit)
        scale = 1.0
        for hook in self.hooks:
            scale *= hook.scale()
        with scaled(self.optimizer, scale):
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        for weight in self.weights.live:
            weight.grad = None

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A copy of all that version N of this stage is: weights, buffers, optimizer, scheduler, corrections."""
        return {
            "module": {name: t.detach().clone() for name, t in tensors_of(self.module).items()},
            "optimizer": deepcopy(self.optimizer.state_dict()) if self.optimizer else None,
            "scheduler": deepcopy(self.scheduler.state_dict()) if self.scheduler else None,
            "hooks": [hook.state() for hook in self.hooks],
            "gradients": [None if w.grad is None else w.grad.clone() for w in self.weights.live],
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
            weight.grad = gradient
        self._collects = any(gradient is not None for gradient in state["gradients"])


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
