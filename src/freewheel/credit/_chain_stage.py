"""Stages that learn by the chain rule: the gradient of the output comes from the next stage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from typing import Any

import torch
from torch import Tensor

from freewheel._trees import differentiable
from freewheel.corrections import Gradients
from freewheel.credit._graph import (
    EDITS_LATE,
    REENTRANT,
    Cotangents,
    Graph,
    Retained,
    StoredInput,
    contents,
    differentiate,
    gradient_norms,
    gradient_slots,
    summed,
    valued,
)
from freewheel.plan import GRADIENT, Op, Unit
from freewheel.stage import (
    Blueprint,
    CompiledFunction,
    Shape,
    Stage,
    Tree,
    Verbs,
    WeightVersions,
    add,
    check_not_compiled,
    copied,
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


class ChainStage(Stage):
    """A stage with forwards, recomputations, backwards and updates."""

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

    def check(self) -> None:
        """Reject compiled modules whose backward must see other weights than their forward."""
        super().check()
        if self._changes_weights:
            check_not_compiled(self.module, self.index, "weights='current'")
        if self.overlaps and self.device.type != "cpu":
            raise ValueError(
                f"overlap=True with stages[{self.index}] on {self.device}: the two passes of a stage run side by side "
                "on cores only; leave it out"
            )

    @property
    def learns_as_a_whole(self) -> bool:
        """Whether gradients pass through the whole stage, as in plain PyTorch."""
        return self.passes_back or not self.index

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Start a run, whose first graph is inspected."""
        super().begin(batches_before, epochs_before)
        self._inspects = True

    def verbs(self) -> Verbs:
        """Add recomputations, backwards and gradients."""

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

    def beside_forwards(self) -> Verbs:
        """Return recomputations and backwards of another module on the same weights."""
        other = copy(self)  # what is pending is in both
        other.module = copied(self.module, {id(p): p for p in self.module.parameters()})
        if self._compute is not None:
            other._compute = other._compiled()
            other._compute.refresh()
        verbs = other.verbs()

        def backward(unit: Unit) -> None:
            verbs[Op.BACKWARD](unit)
            self._gradients, self._stale_weights = other._gradients, other._stale_weights
            other._gradients, other._stale_weights = [], ()

        return {op: verbs[op] for op in (Op.RECOMPUTE, GRADIENT.send, GRADIENT.receive)} | {Op.BACKWARD: backward}

    def _forget(self) -> None:
        self._stored: dict[Unit, StoredInput] = {}
        self._output: Tree = None  # of the last stage's forward, while it is recomputed
        self._graphs: dict[Unit, Graph] = {}
        self._retained: dict[Unit, Retained] = {}
        self._gradients: Gradients = []
        self._stale_weights: Sequence[Tensor] = ()  # that these gradients were taken at
        self._output_gradients: Gradients | None = None  # received
        self._input_gradients: Gradients = ()  # to send

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

    def backward(self, unit: Unit, gradients: Gradients | None) -> Gradients:
        """Backpropagate the gradients of the outputs: accumulate those of the weights, return those of the inputs."""
        graph = self._graphs.pop(unit, None)
        self._retained.pop(unit, None)
        if graph is None:
            return ()
        fed = gradients, self._gradients or None, *self._signals_of(unit)
        inputs, self._gradients, self._stale_weights = self.launch("backward", unit, self._backward, graph, fed=fed)
        self.weights.release(graph.version)
        return inputs

    def _backward(
        self, unit: Unit, graph: Graph, gradients: Gradients | None, earlier: Gradients | None, *signals: Any
    ) -> tuple[Gradients, Gradients, Sequence[Tensor]]:
        """Return the gradients of the inputs and of the weights, these added to earlier ones, and the weights."""
        pairs = self._cotangents(graph, gradients, *signals)
        wanted = [*graph.inputs, *graph.weights]
        with ExitStack() as stack:
            self._enter_backward(stack, unit, graph)
            found = differentiate(pairs, wanted, accumulate=self._reentrant, retain=self.launch.warms_up)
        inputs, ours = found[: len(graph.inputs)], found[len(graph.inputs) :]
        return inputs, ours if earlier is None else [add(a, b) for a, b in zip(earlier, ours)], graph.weights

    def _signals_of(self, unit: Unit) -> tuple[Any, ...]:
        """Return what a backward needs besides its graph and the gradients of the next stage."""
        return ()

    def _enter_backward(self, stack: ExitStack, unit: Unit, graph: Graph) -> None:
        """Put the weights and the random numbers of the forward in place, for what a backward computes again."""
        stack.enter_context(self.weights.backward(graph.weights))
        stack.enter_context(self._draws_of(unit))
        if self._checkpoints:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))

    def _cotangents(self, graph: Graph, gradients: Gradients | None, *signals: Any) -> Cotangents:
        """Return the outputs to backpropagate from, each with its gradient; None for the loss."""
        if gradients is not None:
            gradients = self.corrections.receive([None if g is None else to_device(g, self.device) for g in gradients])
        return graph.cotangents(gradients, self.index if self._compute is not None else None)

    def contribution(self) -> Gradients:
        """Return the gradients of the last backward, weighted by this replica's share of the batch."""
        return self._gradients

    def all_reduce(self, contributions: Sequence[Gradients]) -> None:
        """Sum the gradients of all replicas."""
        found = [to_device(gradients, self.device) for gradients in contributions]
        self._gradients = [summed(each) for each in zip(*found, strict=True)]

    def norms(self) -> Tensor:
        """Return the norm of each weight's gradient, for global clipping."""
        return gradient_norms(self._gradients, self.device)

    def _update(self) -> None:
        gradients, stale_weights = self._gradients, self._stale_weights
        self._gradients, self._stale_weights = [], ()
        self._apply(gradients, stale_weights)

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
