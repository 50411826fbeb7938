"""One worker's way to change shared weights: optimizers and schedules of its own, on aliases of the weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from freewheel.racing._layers import Layer
from freewheel.stage import Stage


class Stepper:
    """Updates layers one by one. The step size is that of the batch which the gradient is of.

    Args:
        stages: The worker's own stages, on aliases of the shared weights, each with an optimizer and a schedule.
        leads: The stages whose settings it begins with.
        shared: Whether state such as momentum is that of `leads`, shared with all who do the same; else a copy.
    """

    def __init__(
        self, stages: Sequence[Stage], leads: Sequence[Stage], layers: Sequence[Layer], *, shared: bool
    ) -> None:
        self._stages = stages
        self._weights = [layer.weights([stage.module for stage in stages]) for layer in layers]
        self._schedules = [Schedule(stage) for stage in stages]
        for stage, lead in zip(stages, leads):
            state = lead.state()
            if stage.optimizer is None or lead.optimizer is None:
                continue
            stage.optimizer.load_state_dict(state["optimizer"])
            if stage.scheduler is not None:
                stage.scheduler.load_state_dict(state["scheduler"])
            if shared:
                for own, live in zip(stage.weights.live, lead.weights.live):
                    stage.optimizer.state[own] = lead.optimizer.state[live]  # the same dict, and what will be in it

    @property
    def stages(self) -> Sequence[Stage]:
        """The worker's stages."""
        return self._stages

    def update(self, layer: Layer, gradients: Sequence[Tensor | None], number: int) -> None:
        """Changes the weights of a layer by the gradients of batch `number`."""
        optimizer = self._stages[layer.stage].optimizer
        assert optimizer is not None
        self._schedules[layer.stage].reach(number)
        for weight, gradient in zip(self._weights[layer.index], gradients):
            weight.grad = gradient
        optimizer.step()
        for weight in self._weights[layer.index]:
            weight.grad = None


class Schedule:
    """A stage's schedule, taken to the step size of a batch: that after one update for each batch before."""

    def __init__(self, stage: Stage) -> None:
        self._scheduler, self._batches = stage.scheduler, 0
        if stage.scheduler is not None and stage.optimizer is not None:
            stage.optimizer.zero_grad()
            stage.optimizer.step()  # without gradients, which changes nothing: a schedule wants one before its own step

    def reach(self, number: int) -> None:
        """Goes on to batch `number`; never back."""
        while self._scheduler is not None and self._batches < number:
            self._scheduler.step()
            self._batches += 1


class Guards:
    """Locks on layers. Unless `locked`, only a layer's first update takes one: state such as momentum is made there.

    Args:
        layers: How many layers there are.
        locked: Whether every update takes the layer's lock.
    """

    def __init__(self, layers: int, *, locked: bool) -> None:
        self._locks = [threading.Lock() for _ in range(layers)]
        self._open = [False] * layers
        self._locked = locked

    @contextmanager
    def at(self, layer: int) -> Iterator[None]:
        """Inside, a layer is updated."""
        if self._open[layer] and not self._locked:
            yield
            return
        with self._locks[layer]:
            yield
        self._open[layer] = True


def average(copies: Sequence[Sequence[Stage]]) -> None:
    """Gives all copies of the network the mean of their weights and of those buffers that hold fractions."""
    if len(copies) < 2:
        return
    with torch.no_grad():
        for tensors in zip(*[[t for stage in stages for t in _fractions(stage)] for stages in copies]):
            mean = torch.stack([tensor.detach() for tensor in tensors]).mean(0)
            for tensor in tensors:
                tensor.copy_(mean)


def _fractions(stage: Stage) -> Iterator[Tensor]:
    yield from (t for t in (*stage.module.parameters(), *stage.module.buffers()) if t.is_floating_point())
