"""A worker: runs batches forward, backward or both on shared weights, and counts what it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.credit import ChainStage
from freewheel.plan import Action, Op
from freewheel.racing._copy import WeightCopy
from freewheel.racing._interleaving import Interleaving, ReplayError
from freewheel.racing._memory import Layer, Stepper, aliased
from freewheel.racing._times import Spans, Tally
from freewheel.runtime import NOT_FINITE, Batch, Before, ClosedError, StageError
from freewheel.stage import SeededDraws, Stage
from freewheel.trace import Recording, Tracer


class LayerCount(NamedTuple):
    """Updates of a layer; the changes between their forward and themselves, in all and at most; their waits in all."""

    started: int = 0
    finished: int = 0
    gaps: int = 0
    widest: int = 0
    waits: float = 0.0


class Report(NamedTuple):
    """What a worker has counted since the last cut."""

    counts: list[LayerCount]
    losses: list[tuple[int, Tensor, int]]  # batch, loss, size
    busy: float  # seconds
    tally: Tally
    recordings: tuple[Recording, ...] = ()  # of its computations, if they are traced


def total(counts: Iterable[Sequence[LayerCount]]) -> list[LayerCount]:
    """Add up the counts of all workers.

    Example:
        >>> total([[LayerCount(1, 1, 2, 2, 0.5)], [LayerCount(3, 2, 3, 1, 0.25)]])
        [LayerCount(started=4, finished=3, gaps=5, widest=2, waits=0.75)]
    """

    def one(each: Sequence[LayerCount]) -> LayerCount:
        started, finished, gaps, widest, waits = zip(*each)
        return LayerCount(sum(started), sum(finished), sum(gaps), max(widest), sum(waits))

    return [one(each) for each in zip(*counts)]


class BatchPass:
    """A network that takes one batch at a time forward and back; reusable after each backward.

    Its parameters are leaves of their own, so gradients of different batches never mix. They alias the shared weights,
    so a backward reads the weights of `stages` as they are at that moment.
    """

    def __init__(
        self, stages: Sequence[Stage], layers: Sequence[Layer], before: Before, interleaving: Interleaving
    ) -> None:
        modules = aliased([stage.module for stage in stages])
        self._stages = [_forward_stage(stage, module, before) for stage, module in zip(stages, modules)]
        self._layers = layers
        self._weights = [layer.weights(modules) for layer in layers]
        self._missing = [0] * len(layers)  # gradients that a layer still lacks
        self.seen = [0] * len(layers)  # changes of a layer before its forward
        self.number = self.epoch = 0  # of the batch
        self.forward_span: tuple[Any, Any] = 0, 0  # marks of the worker's clock
        self.on_forward: Callable[[Layer], None] = lambda layer: None  # before a layer's forward
        self.on_gradient: Callable[[Layer], None] = lambda layer: None  # when a layer's gradient is complete
        self._loss: Tensor | None = None
        self._device = self._stages[-1].device
        self.gpu_stream = interleaving.stream(self._device)
        for layer, weights in zip(layers, self._weights):
            layer.module(modules).register_forward_pre_hook(partial(self._forward_hook, layer))
            for weight in weights:
                weight.register_post_accumulate_grad_hook(partial(self._gradient_hook, layer))

    def forward(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch; its graph is retained for the backward."""
        self.number, self.epoch, unit = batch.number, batch.epoch, (batch.number, 0)
        with self.stream(), torch.enable_grad():
            out = batch.x
            for stage in self._stages:
                out = stage.through(unit, out, batch.target)
        self._loss = out
        self.on_forward = lambda layer: None  # a layer that the backward runs again makes no step
        return out.detach()

    def backward(self, partition: range) -> None:
        """Compute the gradients of these layers; `on_gradient` is called for each layer."""
        loss, self._loss = self._loss, None
        assert loss is not None
        self._missing = [len(weights) for weights in self._weights]
        weights = [weight for layer in partition for weight in self._weights[layer]]
        inputs = weights if len(partition) < len(self._layers) else None
        if loss.requires_grad:
            # Autograd has one thread per GPU, in which the hooks of all workers would block each other.
            alone = torch.autograd.set_multithreading_enabled(self._device.type == "cpu")
            draws = SeededDraws(self.number)
            with self.stream(), alone, draws:
                torch.autograd.backward(loss, inputs=inputs)

    def take(self, layer: Layer) -> list[Tensor | None]:
        """Remove and return the gradients of a layer."""
        gradients = [weight.grad for weight in self._weights[layer.index]]
        for weight in self._weights[layer.index]:
            weight.grad = None
        return gradients

    def has_gradient(self, layer: Layer) -> bool:
        """Whether a layer has gradients that have not been taken."""
        return any(weight.grad is not None for weight in self._weights[layer.index])

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Context in which GPU work goes to this pass's own stream, after the work already queued."""
        if self.gpu_stream is None:
            yield
            return
        self.gpu_stream.wait_stream(torch.cuda.current_stream(self.gpu_stream.device))
        with torch.cuda.stream(self.gpu_stream):
            yield

    def synchronize(self) -> None:
        """Wait for the work on the GPU stream, if there is one."""
        if self.gpu_stream is not None:
            self.gpu_stream.synchronize()

    def _forward_hook(self, layer: Layer, module: nn.Module, arguments: object) -> None:
        self.on_forward(layer)

    def _gradient_hook(self, layer: Layer, weight: Tensor) -> None:
        self._missing[layer.index] -= 1
        if not self._missing[layer.index]:
            self.on_gradient(layer)


def _forward_stage(stage: Stage, module: nn.Module, before: Before) -> ChainStage:
    """A stage on another module, without an optimizer, for forwards only."""
    options = replace(stage.options, corrections=())
    made = ChainStage(replace(stage.blueprint, module=module, options=options, optimizer=None, scheduler=None))
    made.begin(*before)
    return made


class Worker:
    """A worker on a copy of the weights. One without a stepper never updates.

    Args:
        name: Its name, in recordings and errors.
        index: Its row in the counts of changes.
        layers: The layers of the network.
        interleaving: Decides when it makes its steps.
        copy: The copy of the weights that it reads and updates.
        stepper: Its optimizers.
        others: The copies of other devices, to which it sends each layer that it has updated.
    """

    def __init__(
        self,
        name: str,
        index: int,
        layers: list[Layer],
        interleaving: Interleaving,
        copy: WeightCopy,
        stepper: Stepper | None,
        others: Sequence[WeightCopy] = (),
    ) -> None:
        self.name, self.interleaving, self.stepper = name, interleaving, stepper
        self._index, self._layers, self._copy, self._others = index, layers, copy, others
        self.tracer = Tracer()
        self.where = ""  # where it failed, in the words of the error
        self._doing: tuple[Op, int, Layer | None] = Op.FORWARD, 0, None
        self._start_counts()

    def _start_counts(self) -> None:
        self._counts = [LayerCount() for _ in self._layers]
        self._tally = Tally()
        self._losses: list[tuple[int, Tensor, int]] = []
        self._busy = 0.0

    def report(self) -> Report:
        """Return what it has counted, and start counting anew."""
        report = Report(self._counts, self._losses, self._busy, self._tally, self.tracer.take())
        self._start_counts()
        return report

    def forward(self, batch_pass: BatchPass, batch: Batch) -> None:
        """Compute the loss of a batch."""
        reached: set[int] = set()

        def on_forward(layer: Layer) -> None:
            self._doing = Op.FORWARD, batch.number, layer
            self.interleaving.step(self.name, f"F{batch.number} {layer.name}")
            if layer.index not in reached:
                reached.add(layer.index)
                batch_pass.seen[layer.index] = self._copy.changes.of(layer.index)

        clock, tally = self.interleaving.clock(batch_pass.gpu_stream), self._tally
        self._tally = tally._replace(first=min(tally.first, self.interleaving.now()))
        with self._computing(Op.FORWARD, batch.number):
            began = clock.mark()
            batch_pass.seen = [self._copy.changes.of(layer.index) for layer in self._layers]
            batch_pass.on_forward = on_forward
            loss = batch_pass.forward(batch)
            batch_pass.forward_span = began, clock.mark()
            if loss.device.type == "cpu" and not math.isfinite(loss.item()):
                raise FloatingPointError(f"the loss is {loss.item()}: {NOT_FINITE}")
        self._losses.append((batch.number, loss, batch.size))

    def backward(self, batch_pass: BatchPass, *, layerwise: bool, partition: range) -> None:
        """Run the backward of a batch and update the layers of a partition: each at once, or all at the end."""
        number, complete = batch_pass.number, list[Layer]()
        spans = Spans(self.interleaving.clock(batch_pass.gpu_stream))

        def on_gradient(layer: Layer) -> None:
            spans.gradient(layer)
            if layerwise:
                self._update(batch_pass, layer, spans)
            else:
                complete.append(layer)
            self._doing = Op.BACKWARD, number, None
            self.interleaving.step(self.name, f"B{number} {layer.name}")

        with self._computing(Op.BACKWARD, number):
            self.interleaving.step(self.name, f"B{number}")
            batch_pass.on_gradient = on_gradient
            batch_pass.backward(partition)
            # A layer whose parameters the batch has used only in part never gets a complete gradient.
            rest = [self._layers[i] for i in partition if batch_pass.has_gradient(self._layers[i])]
            for layer in (*complete, *(layer for layer in rest if layer not in complete)):
                self._update(batch_pass, layer, spans)
            spans.end()
            batch_pass.synchronize()
        self._add(batch_pass, spans)

    def _update(self, batch_pass: BatchPass, layer: Layer, spans: Spans) -> None:
        assert self.stepper is not None
        number, i = batch_pass.number, layer.index
        self._doing = Op.UPDATE, number, layer
        self.interleaving.step(self.name, f"U{number} {layer.name}")
        count = self._counts[i]
        self._counts[i] = count._replace(started=count.started + 1)
        spans.use(layer)
        self.tracer.begin(Op.UPDATE.value, number)
        with batch_pass.stream(), self._copy.locks.updating(i):
            gap = self._copy.changes.of(i) - batch_pass.seen[i]
            self.stepper.update(layer, batch_pass.take(layer), number, batch_pass.epoch)
        self.tracer.end()
        self._copy.changes.add(self._index, i)
        count = self._counts[i]
        self._counts[i] = count._replace(
            finished=count.finished + 1, gaps=count.gaps + gap, widest=max(count.widest, gap)
        )
        for other in self._others:
            self.interleaving.step(self.name, f"S{number} {layer.name} {other.index}")
            with spans.sending(), batch_pass.stream():
                other.receive(layer, self.stepper.weights(layer), self._index)

    def _add(self, batch_pass: BatchPass, spans: Spans) -> None:
        """Add up the times of a batch."""
        for i, wait in spans.waits():
            self._counts[i] = self._counts[i]._replace(waits=self._counts[i].waits + wait)
        tally, sending = self._tally, spans.sent()
        self._tally = tally._replace(
            batches=tally.batches + 1,
            forward=tally.forward + spans.clock.between(*batch_pass.forward_span).computing,
            backward=tally.backward + spans.whole() - sending,
            sending=tally.sending + sending,
            last=self.interleaving.now(),
        )

    @contextmanager
    def _computing(self, op: Op, batch: int) -> Iterator[None]:
        """Context of computation: its time counts as busy, and an error in it names the worker and the layer."""
        started = time.perf_counter()
        self._doing = op, batch, None
        self.tracer.begin(op.value, batch)
        try:
            yield
        except (ClosedError, ReplayError):
            raise
        except Exception as error:
            op, batch, layer = self._doing
            self.where = f", {self.name}" if layer is None else f", {self.name}, layer {layer.name!r},"
            raise StageError(0 if layer is None else layer.stage, Action(op, batch, 0), error, self.where) from error
        self.tracer.end()
        self._busy += time.perf_counter() - started
