"""A stage that learns by the chain rule: it takes the gradient from the next stage and passes its own on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel.corrections import Gradients
from freewheel.plan import GRADIENT, Op, Unit
from freewheel.stage import (
    Blueprint,
    Current,
    Live,
    Shape,
    Stage,
    Stash,
    Tree,
    Verbs,
    WeightVersions,
    add,
    copies,
    flatten,
    map_tensors,
    scratch_buffers,
    tensors_among,
    to_device,
    unflatten,
    versions,
)


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


class Kept(NamedTuple):
    """What the graph of a late stage was made from and has saved: enough to make it again."""

    inputs: Tree
    target: Tree
    share: float
    buffers: list[Tensor]  # before the forward
    saved: list[Any]  # by autograd, where the weights say so


class ChainStage(Stage):
    """Forward, recompute, backward and update are its verbs."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self.passes_back = self.index > 0  # whether the stage before learns from this one's inputs
        self.recomputes = self.delay > 0 and self.schedule.weights == "recompute"
        self._forget()

    def verbs(self) -> Verbs:
        """Gradients come from the next stage and go to the one before."""

        def backward(unit: Unit) -> None:
            self._input_gradients = self.backward(unit, self._output_gradients)
            self._output_gradients = None

        return {
            **super().verbs(),
            Op.RECOMPUTE: self.recompute,
            Op.BACKWARD: backward,
            GRADIENT.send: lambda unit: self._input_gradients,
            GRADIENT.receive: lambda unit, gradients: setattr(self, "_output_gradients", gradients),
        }

    def _forget(self) -> None:
        self._stored: dict[Unit, Stored] = {}
        self._graphs: dict[Unit, Graph] = {}
        self._kept: dict[Unit, Kept] = {}  # for checkpoints
        self._gradients: Gradients = []
        self._stale_weights: Sequence[Tensor] = ()  # that these gradients were taken at
        self._output_gradients: Gradients | None = None  # received
        self._input_gradients: Gradients = ()  # to send

    def _make_weights(self) -> WeightVersions:
        schedule = self.schedule
        if not self.delay or schedule.weights == "recompute":
            return Live(self.module)
        if schedule.weights == "current":
            return Current(self.module, self.corrections.backward_weights)
        gap = self.delay - (schedule.order == "backward")
        return Stash(self.module, predict=gap if schedule.weights == "predict" else 0)

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Runs the module and keeps its graph, or its input where the forward will be redone."""
        if x is None:
            return None
        leaves, spec = self._pass(unit, x, target, share * weight)
        if self.is_last:
            loss = leaves[0].detach()
            self.losses.append((loss, size))
            return loss
        return unflatten(map_tensors(Tensor.detach, leaves), spec)

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """The outputs, with all that is needed to learn from them kept."""
        if self.recomputes:
            self._stored[unit] = Stored(x, target, share)
            with torch.no_grad():
                leaves, spec, _ = self._run(unit, x, target)
            return leaves, spec
        if self.retains and self.delay:
            return self._keep(unit, x, target, share)
        return self._record(unit, x, target, share)

    def through(self, unit: Unit, x: Tree, target: Tree = None) -> Tree:
        """The module on its input, the loss behind the last one, as part of a graph that somebody else holds."""
        with self.weights.forward(self.version):
            leaves, spec, _ = self._run(unit, x, target)
        return unflatten(leaves, spec)

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
            outputs = [t for t in tensors_among(leaves) if t.requires_grad]
            if self.is_last and share != 1.0:
                outputs = [loss * share for loss in outputs]
        # The next stage answers with a gradient for each of these.
        tensors = [t for t in tensors_among(leaves) if t.is_floating_point()]
        places = [None if self.is_last else i for i, t in enumerate(tensors) if t.requires_grad]
        self._graphs[unit] = Graph(inputs, outputs, places, weights, self.version)
        return leaves, spec

    def _run(self, unit: Unit, x: Tree, target: Tree) -> tuple[list[Any], Shape, list[Tensor]]:
        """The module on its input, the loss behind the last one: flat outputs, and the inputs to differentiate by."""
        given, shape = flatten(to_device(x, self.device))
        inputs: list[Tensor] = []
        if self.passes_back and torch.is_grad_enabled():
            inputs = [t.requires_grad_() for t in tensors_among(given) if t.is_floating_point()]
        # Whether the module edits its input is found out on a copy, the first time; from then on only editors get one.
        used = copies(given) if self._edits else given
        out = self._call(unit, unflatten(used, shape), target)
        self._edits = self._edits and any(versions(used))
        leaves, spec = flatten(out)
        return leaves, spec, inputs

    # -- backward and update ---------------------------------------------------------------------------------------

    def backward(self, unit: Unit, gradients: Gradients | None) -> Gradients:
        """Takes the gradient from the next stage, keeps the weights' part, and returns the inputs' part."""
        graph = self._graphs.pop(unit, None)
        self._kept.pop(unit, None)
        if graph is None:
            return ()
        pairs = self._cotangents(unit, graph, gradients)
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
        self._gradients = ours if not self._gradients else [add(a, b) for a, b in zip(self._gradients, ours)]
        self._stale_weights = graph.weights
        self.weights.release(graph.version)
        return inputs

    def _cotangents(self, unit: Unit, graph: Graph, gradients: Gradients | None) -> list[tuple[Tensor, Tensor | None]]:
        """The outputs to go back from, each with its gradient; None for the loss."""
        if gradients is not None:
            gradients = self.corrections.receive([None if g is None else to_device(g, self.device) for g in gradients])
        given = [None if i is None else gradients[i] for i in graph.places]  # pyright: ignore
        return [(t, g) for t, g, i in zip(graph.outputs, given, graph.places) if i is None or g is not None]

    def contribution(self) -> Gradients:
        """The gradients of the last backward, of a loss weighted by this replica's number of samples."""
        return self._gradients

    def all_reduce(self, contributions: Sequence[Gradients]) -> None:
        """Adds up the gradients of all replicas."""
        there = [to_device(gradients, self.device) for gradients in contributions]
        self._gradients = [_sum(each) for each in zip(*there, strict=True)]

    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""
        norms = [torch.linalg.vector_norm(g) for g in self._gradients if g is not None]
        return torch.stack(norms) if norms else torch.zeros(0, device=self.device)

    def _update(self) -> None:
        gradients, stale_weights = self._gradients, self._stale_weights
        self._gradients, self._stale_weights = [], ()
        self._apply(gradients, stale_weights)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _keep(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """A forward whose graph is kept, and with it what it takes to make the graph again."""
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        self.weights.saved = []
        result = self._record(unit, x, target, share)
        self._kept[unit] = Kept(x, target, share, buffers, self.weights.saved)
        self.weights.saved = None
        return result

    def pending(self) -> dict[str, Any]:
        """Stored inputs; for each graph what it was made from; and the versions of the weights."""
        return {
            **super().pending(),
            "stored": {unit: tuple(stored) for unit, stored in self._stored.items()},
            "graphs": {unit: (graph.version, *self._kept[unit]) for unit, graph in self._graphs.items()},
            "weights": self.weights.pending(),
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Makes every graph again, on the weights and buffers of its forward, and with what autograd had saved."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        version, edits = self.version, self._edits
        self._stored = {unit: Stored(*stored) for unit, stored in pending["stored"].items()}
        self.weights.restore(pending["weights"])
        for unit, (self.version, x, target, share, buffers, saved) in pending["graphs"].items():
            with scratch_buffers(self.module, buffers), self.weights.replaying(saved):
                self._record(unit, x, target, share)
            self._kept[unit] = Kept(x, target, share, buffers, saved)
        self.version, self._edits = version, edits


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The sum in the order given, in memory of its own; None where there is nothing to add."""
    found = [term for term in terms if term is not None]
    if not found:
        return None
    out = found[0].clone()
    for term in found[1:]:
        out += term
    return out
