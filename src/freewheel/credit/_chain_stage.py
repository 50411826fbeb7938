"""Stages that learn by the chain rule: the gradient of the output comes from the next stage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from typing import Any

import torch
from torch import Tensor

from freewheel.corrections import Gradients
from freewheel.credit._graph import Cotangents, Graph, differentiate, gradient_norms, summed
from freewheel.credit._recording_stage import RecordingStage
from freewheel.plan import GRADIENT, Op, Unit
from freewheel.stage import Verbs, add, check_not_compiled, copied, to_device


class ChainStage(RecordingStage):
    """A stage with forwards, recomputations, backwards and updates."""

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
        super()._forget()
        self._gradients: Gradients = []
        self._stale_weights: Sequence[Tensor] = ()  # that these gradients were taken at
        self._output_gradients: Gradients | None = None  # received
        self._input_gradients: Gradients = ()  # to send

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
