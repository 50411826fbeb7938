"""`feedback`: the error at the output, or the target, reaches every layer through fixed random weights.

::

    blocks   … ─▶ layer 1 ─▶ act ─▌─▶ layer 2 ─▶ norm ─▶ act ─▌─▶ layer 3 ─▶ output ─▶ loss
                          B_2 s ─▶▌                   B_3 s ─▶▌                  ◀── e

A block is a Linear or Conv2d layer with what follows it, up to the next such layer l. Its output h_l is that layer's
input, and gets the gradient B_l s; from there autograd goes back through the block. The last block gets the error
e = ∂loss/∂output itself. The signal s is e, its sign, or the target.

The error is a message: `e3>` sends it towards the first stage, and each stage passes it on before it uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._errors import one_of
from freewheel.corrections import Gradients
from freewheel.credit._chain_stage import ChainStage, Graph
from freewheel.credit._credit import Credit
from freewheel.feedback import FeedbackOptions, FeedbackWeights, cut_off
from freewheel.feedback._numbering import StageLayers, number_stacked_layers
from freewheel.plan import GRADIENT, Message, Op, Unit
from freewheel.stage import Blueprint, Shape, Stage, Tree, Verbs, to_device

if TYPE_CHECKING:
    from freewheel.methods import Pipeline

Signal = Literal["error", "sign", "target"]
SIGNALS: tuple[Signal, ...] = ("error", "sign", "target")
ERROR = Message("e", "error", way=-1, made_by=Op.FORWARD, needed_by=Op.BACKWARD, relayed=True)
_GIVES = "the module gives"


@dataclass(frozen=True, kw_only=True)
class Feedback(FeedbackOptions, Credit):
    """A signal from the output reaches the input of each layer through fixed random weights.

    Args:
        signal: `error`: the error at the output (`dfa`); `sign`: its sign (`sdfa`); `target`: the target (`drtp`).
        bound: The largest feedback weight; He's bound by default.
        own: Given feedback weights by the layer's number, (outputs of the network, *shape of its input).
        joined: Whether a block of layers goes on in the next stage, which then sends its gradient; the trainer says.
        layers: The layers of each stage; the trainer fills them in.

    Example:
        >>> Feedback(signal="sign", bound=0.5)
        Feedback(bound=0.5, own=None, signal='sign', joined=False)
    """

    name: ClassVar[str] = "feedback"
    family: ClassVar[str] = "feedback"
    plan_fields: ClassVar[tuple[str, ...]] = ("signal", "joined")

    signal: Signal = "error"
    joined: bool = False
    layers: tuple[StageLayers, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("signal", self.signal, SIGNALS)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The error, unless the target takes its place; the gradient within a block that the cut divides."""
        return (*([] if self.needs_targets else [ERROR]), *([GRADIENT] if self.joined else []))

    @property
    def needs_targets(self) -> bool:
        """Whether the target is the signal."""
        return self.signal == "target"

    def check(self, pipeline: Pipeline) -> None:
        """A batch is taken whole."""
        if pipeline.micro > 1:
            raise ValueError(f"micro={pipeline.micro}: under credit='feedback' a batch is taken whole; leave it out")

    def bind(self, modules: Sequence[nn.Module]) -> Feedback:
        """Numbers the layers."""
        layers, joined = number_stacked_layers(modules)
        return replace(self, layers=layers, joined=joined)

    def build(self, blueprint: Blueprint) -> Stage:
        """Builds a stage whose blocks learn from the signal."""
        return FeedbackStage(blueprint, self)


class FeedbackStage(ChainStage):
    """A stage whose blocks each get their gradient from a signal that goes past all others."""

    def __init__(self, blueprint: Blueprint, feedback: Feedback) -> None:
        self._options = feedback
        super().__init__(blueprint)
        self.passes_back = self.index > 0 and feedback.joined
        self._layers = feedback.layers[self.index]
        self._numbered = self._layers.of(self.module)

    def verbs(self) -> Verbs:
        """The error goes from the last stage to all."""
        return {
            **super().verbs(),
            ERROR.send: lambda unit: self._signals.get(unit),  # None for a micro-batch without samples
            ERROR.receive: self._take_signal,
        }

    def _forget(self) -> None:
        super()._forget()
        self._feedback = FeedbackWeights(self._options, self.config.seed)
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
        ends = [*ends, (None if self.is_last or self._options.joined else self._layers.after, out)]
        there = [(number, end) for number, end in ends if end.requires_grad]
        places, outputs = [number for number, _ in there], [end for _, end in there]
        self._graphs[unit] = Graph(inputs, outputs, places, weights, self.version)
        if self._options.needs_targets:
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
        if self._options.signal == "sign":
            self._signals[unit] = error.sign() * (share / len(error))
        elif self._options.signal == "error":
            self._signals[unit] = error
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

    def _take_signal(self, unit: Unit, signal: Tensor | None) -> None:
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
