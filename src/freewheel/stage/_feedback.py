"""Stages that learn through fixed random feedback: `AlignedStage` from layer to layer, `FeedbackStage` directly.

::

    blocks   … ─▶ layer 1 ─▶ act ─▌─▶ layer 2 ─▶ norm ─▶ act ─▌─▶ layer 3 ─▶ output ─▶ loss
                          B_2 s ─▶▌                   B_3 s ─▶▌                  ◀── e

A block is a Linear or Conv2d layer with what follows it, up to the next such layer l. Its output h_l is that layer's
input, and gets the gradient B_l s; from there autograd goes back through the block. The last block gets the error
e = ∂loss/∂output itself. The signal s is e, its sign, or the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel.feedback import FeedbackWeights, Layer, cut_off, passing_back
from freewheel.stage._chain import ChainStage, Graph
from freewheel.stage._corrections import Gradients
from freewheel.stage._stage import Tree, Unit
from freewheel.stage._trees import Shape, to_device

_GIVES = "the module gives"


class Layers(NamedTuple):
    """Which Linear and Conv2d layers a stage has, out of those of the whole network."""

    numbers: Mapping[str, int]  # by their names in the stage
    after: int  # the number of the next stage's first one
    outputs: int  # of the network


class _Fed(ChainStage):
    """What both kinds share: numbered layers, and their feedback weights while a run lasts."""

    def _forget(self) -> None:
        super()._forget()
        assert self.options.feedback is not None
        self._feedback = FeedbackWeights(self.options.feedback, self.options.seed)

    def number_layers(self, layers: Layers) -> None:
        """Tells which numbers its layers have in the whole network."""
        self._layers = layers
        found = [(self.module.get_submodule(name), number) for name, number in layers.numbers.items()]
        self._numbered = [(layer, number) for layer, number in found if isinstance(layer, Layer)]


class AlignedStage(_Fed):
    """A stage of the chain rule whose layers pass gradients back through feedback weights."""

    def _plain_call(self, x: Tree, target: Tree) -> Tree:
        with passing_back(self._numbered, self._feedback):
            return super()._plain_call(x, target)


class FeedbackStage(_Fed):
    """A stage whose blocks each get their gradient from a signal that goes past all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.passes_back = self.index > 0 and self.options.schedule.joined

    def _forget(self) -> None:
        super()._forget()
        self._signals: dict[Unit, Tensor] = {}
        self._errors: dict[Unit, Tensor] = {}  # at the output, where it is here
        self._output: tuple[Tensor, Tensor] | None = None  # of the network, and the copy that the loss was taken of

    # -- forward ---------------------------------------------------------------------------------------------------

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """A forward whose blocks are kept, each with the number of the layer behind it, None for the last of all."""
        with torch.enable_grad(), self.weights.forward(self.version) as weights:
            with cut_off(self._numbered) as ends:
                leaves, spec, inputs = self._run(unit, x, target)
            out = self._left(unit, leaves, share)
        ends = [*ends, (None if self.is_last or self.options.schedule.joined else self._layers.after, out)]
        there = [(number, end) for number, end in ends if end.requires_grad]
        places, outputs = [number for number, _ in there], [end for _, end in there]
        self._graphs[unit] = Graph(inputs, outputs, places, weights, self.version)
        if self.options.schedule.taught:
            signal = _one_hot(to_device(target, self.device), self._layers.outputs)
            self._signals[unit] = signal.to(out.dtype) * (share / len(out))
        return leaves, spec

    def _left(self, unit: Unit, leaves: list[Any], share: float) -> Tensor:
        """What leaves the stage, or the network; there the error is found."""
        if not self.is_last:
            if len(leaves) != 1 or not isinstance(leaves[0], Tensor):
                raise TypeError(f"{_GIVES} {len(leaves)} values: a stage under credit='feedback' gives one tensor")
            return leaves[0]
        assert self._output is not None
        (out, copy), self._output = self._output, None
        (error,) = torch.autograd.grad(leaves[0] * share, copy)
        self._errors[unit] = error
        if self.options.schedule.sends_errors:
            assert self.options.feedback is not None
            sign = self.options.feedback.signal == "sign"
            self._signals[unit] = error.sign() * (share / len(error)) if sign else error
        return out

    def _finish(self, out: Tree, target: Tree) -> Tree:
        if not torch.is_grad_enabled():
            return self._loss(out, target)
        if not isinstance(out, Tensor):
            raise TypeError(f"{_GIVES} a {type(out).__name__}: a network under credit='feedback' gives one tensor")
        copy = out.detach().requires_grad_()
        self._output = out, copy
        return self._loss(copy, target)

    # -- backward --------------------------------------------------------------------------------------------------

    def error(self, unit: Unit) -> Tensor | None:
        """The signal that goes to all stages; None for a micro-batch without samples."""
        return self._signals.get(unit)

    def take_error(self, unit: Unit, signal: Tensor | None) -> None:
        """Takes the signal from the next stage."""
        if signal is not None:
            self._signals[unit] = to_device(signal, self.device)

    def _cotangents(self, unit: Unit, graph: Graph, gradients: Gradients | None) -> list[tuple[Tensor, Tensor | None]]:
        """The blocks' outputs and their gradients: that of the last block comes from outside, the others' from here."""
        signal, error = self._signals.pop(unit), self._errors.pop(unit, None)
        if gradients is not None:
            (error,) = (None if g is None else to_device(g, self.device) for g in gradients)
        pairs = zip(graph.outputs, graph.places)
        found = [(end, error if number is None else self._fed_back(number, end, signal)) for end, number in pairs]
        return [(end, gradient) for end, gradient in found if gradient is not None]

    def _fed_back(self, number: int, end: Tensor, signal: Tensor) -> Tensor:
        """B s for each sample: the gradient at the input of a layer."""
        if len(signal) != len(end):
            raise ValueError(
                f"layer {number} gets {len(end)} samples where the network gives {len(signal)}: under "
                "credit='feedback' every layer must keep the first dimension"
            )
        signal = signal.flatten(1).to(end.dtype)
        weights = self._feedback.of(number, (signal.shape[1], *end.shape[1:]), end)
        return (signal @ weights.flatten(1)).view(end.shape)


def _one_hot(target: Tree, outputs: int) -> Tensor:
    """A class for each sample as a row of zeros and a one; numbers for each output as they are."""
    if isinstance(target, Tensor) and target.is_floating_point():
        return target.flatten(1)
    if not isinstance(target, Tensor) or target.dim() != 1:
        came = f"a tensor of shape {tuple(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(f"the target is {came}: under 'drtp' give a class for each sample, or a number for each output")
    return F.one_hot(target, outputs)
