"""Stages whose forwards leave behind what a gradient is computed from: their graph, or their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel._trees import differentiable
from freewheel.credit._graph import (
    EDITS_LATE,
    REENTRANT,
    Graph,
    Retained,
    StoredInput,
    contents,
    gradient_slots,
    valued,
)
from freewheel.plan import Unit
from freewheel.stage import (
    Blueprint,
    CompiledFunction,
    Shape,
    Stage,
    Tree,
    WeightVersions,
    copies,
    flatten,
    late_weights,
    map_tensors,
    scratch_buffers,
    tensors_among,
    to_device,
    unflatten,
    versions,
)


class RecordingStage(Stage):
    """A stage with forwards that are recorded, and recomputations of those that are not."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self.passes_back = self.index > 0  # whether to compute input gradients for the previous stage
        self.recomputes = self.delay > 0 and self.schedule.weights == "recompute"
        self._changes_weights = self.delay > 0 and self.schedule.weights == "current"
        self._inspects, self._reentrant = True, False
        if self.config.compile:
            self._compute = self._compiled()
        self._forget()

    def _compiled(self) -> CompiledFunction:
        options = {"recomputes": not self._changes_weights, "donates": self.config.runtime != "graph"}
        return CompiledFunction(self._plain_call, self._holders, self.index, self.blueprint.code, **options)

    @property
    def learns_as_a_whole(self) -> bool:
        """Whether gradients pass through the whole stage, as in plain PyTorch."""
        return self.passes_back or not self.index

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Start a run, whose first graph is inspected."""
        super().begin(batches_before, epochs_before)
        self._inspects = True

    def _forget(self) -> None:
        self._stored: dict[Unit, StoredInput] = {}
        self._output: Tree = None  # of the last stage's forward, while it is recomputed
        self._graphs: dict[Unit, Graph] = {}
        self._retained: dict[Unit, Retained] = {}

    def _make_weights(self) -> WeightVersions:
        given = self.module, self.schedule, self.delay, self.corrections.backward_weights
        return late_weights(*given, fixed=self.launch.fixed)

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Run the module and store its graph, or its input if the forward will be recomputed."""
        if x is None:
            return None
        given, fed = ((x,), (target,)) if self.index else ((), (x, target))
        out, stored = self.launch("forward", unit, self._forward, share * weight, *given, fed=fed)
        self._store(unit, stored)
        if self.is_last:
            self.losses.append((self.launch.kept(out), size))
        return out

    def _forward(self, unit: Unit, share: float, x: Tree, target: Tree) -> tuple[Tree, tuple[Any, ...]]:
        """Return the outputs, and what is needed to learn from them."""
        leaves, spec = self._pass(unit, x, target, share)
        return unflatten(map_tensors(Tensor.detach, leaves), spec), self._take(unit)

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Return the outputs, and store what is needed to learn from them."""
        if self.recomputes:
            with torch.no_grad():
                leaves, spec, _ = self._run(unit, x, target)
            self._stored[unit], self._besides = StoredInput(x, target, share, self._besides), None
            return leaves, spec
        if self.retains and self.delay:
            return self._record_and_retain(unit, x, target, share)
        return self._record(unit, x, target, share)

    def through(self, unit: Unit, x: Tree, target: Tree = None) -> Tree:
        """Run the module, and the loss after the last one, as part of the caller's graph."""
        with self.weights.forward(self.version):
            leaves, spec, _ = self._run(unit, x, target)
        return unflatten(leaves, spec)

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Run a forward and store its graph."""
        with torch.enable_grad(), self.weights.forward(self.version) as weights:
            leaves, spec, inputs = self._run(unit, x, target)
            outputs = [t for t in tensors_among(leaves) if t.requires_grad]
            outputs = [loss * share for loss in outputs] if self.is_last and share != 1.0 else outputs
        slots = [None] * len(outputs) if self.is_last else gradient_slots(leaves)
        if self._inspects:
            self._inspect(outputs, weights)
        self._graphs[unit] = Graph(inputs, outputs, slots, weights, self.version)
        return leaves, spec

    def _inspect(self, outputs: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Look into the first graph of a run, and refuse what its backward would get wrong."""
        found = contents(outputs)
        self._inspects, self._reentrant = False, found.reentrant or self._checkpoints == "reentrant"
        if self._checkpoints:
            self.weights.check_replayable()
        if self._reentrant and not self.learns_as_a_whole:
            raise ValueError(REENTRANT.format(stage=self.index))
        self.weights.check(found.leaves, weights, self.index)

    def _run(self, unit: Unit, x: Tree, target: Tree) -> tuple[list[Any], Shape, list[Tensor]]:
        """Run the module, and the loss after the last one; return flat outputs and the inputs to differentiate by."""
        given, shape = flatten(to_device(x, self.device))
        learned = tensors_among(given) if self.passes_back and torch.is_grad_enabled() else []
        inputs = [t.requires_grad_() for t in learned if differentiable(t)]
        # The first forward runs on a copy to detect whether the module edits its input; later only editors get a copy.
        used = copies(given) if self._edits else given
        before = versions(used)
        out = self._call(unit, unflatten(used, shape), target)
        edited = versions(used) != before
        if edited and not self._edits:
            raise ValueError(EDITS_LATE.format(stage=self.index, batch=unit[0]))
        self._edits = edited
        leaves, spec = flatten(out)
        return leaves, spec, inputs

    def _stores(self) -> tuple[dict[Unit, Any], ...]:
        """Return the dicts of what a forward stores for its backward."""
        return self._graphs, self._stored, self._retained

    def _take(self, unit: Unit) -> tuple[Any, ...]:
        return tuple(store.pop(unit, None) for store in self._stores())

    def _store(self, unit: Unit, taken: tuple[Any, ...]) -> None:
        """Store what `_take` has taken out, maybe of an earlier batch."""
        for store, value in zip(self._stores(), taken):
            if value is not None:
                store[unit] = value
        graph = self._graphs.get(unit)
        if graph is not None:
            graph.version = self.version
            self.weights.hold(graph.version, graph.weights)

    def recompute(self, unit: Unit) -> None:
        """Recompute a forward on its stored input with the newest weights.

        The random numbers are those of the forward, and buffers such as running statistics are unchanged. The loss is
        that at the output of the forward (eq. 5 of DSP).
        """
        stored = self._stored.pop(unit, None)
        if stored is not None:
            self._store(unit, self.launch("recompute", unit, self._recompute, stored))

    def _recompute(self, unit: Unit, stored: StoredInput) -> tuple[Any, ...]:
        *arguments, self._output = stored
        with scratch_buffers(self.module):
            self._record(unit, *arguments)
        self._output = None
        return self._take(unit)

    def _call(self, unit: Unit, x: Tree, target: Tree) -> Tree:
        return super()._call(unit, x, target if self._output is None else (target, self._output))

    def _plain_call(self, x: Tree, target: Tree) -> tuple[Tree, Tree]:
        """Run the module, and the loss after the last one; a late one that recomputes also returns its output."""
        if not (self.is_last and self.recomputes):
            return super()._plain_call(x, target)
        out = self.module(x)
        if torch.is_grad_enabled():
            target, before = target
            return self._finish(valued(before, out), target), None
        leaves, shape = flatten(out)
        kept = unflatten(copies(leaves), shape)  # a loss may change its argument
        return self._finish(out, target), kept

    def _record_and_retain(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Run a forward, store its graph and retain what a checkpoint needs to rebuild it."""
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        self.weights.saved = []
        result = self._record(unit, x, target, share)
        self._retained[unit] = Retained(x, target, share, buffers, self.weights.saved)
        self.weights.saved = None
        return result

    def pending(self) -> dict[str, Any]:
        """Return stored inputs, what each graph is rebuilt from, and the weight versions."""
        return {
            **super().pending(),
            "stored": {unit: tuple(stored) for unit, stored in self._stored.items()},
            "graphs": {unit: (graph.version, *self._retained[unit]) for unit, graph in self._graphs.items()},
            "weights": self.weights.pending(),
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Rebuild every graph, on the weights and buffers of its forward and with the tensors that autograd saved."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        before = self.version, self._edits
        self._stored |= {unit: StoredInput(*stored) for unit, stored in pending["stored"].items()}
        self.weights.restore(pending["weights"])
        for unit, (self.version, x, target, share, buffers, saved) in pending["graphs"].items():
            with scratch_buffers(self.module, buffers), self.weights.replaying(saved):
                self._record(unit, x, target, share)
            self._store(unit, self._take(unit))
            self._retained[unit] = Retained(x, target, share, buffers, saved)
        self.version, self._edits = before
