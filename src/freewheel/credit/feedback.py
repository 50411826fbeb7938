"""`feedback`: every layer receives the output error, or the target, through fixed random weights.

::

    blocks   … ─▶ layer 1 ─▶ act ─▌─▶ layer 2 ─▶ norm ─▶ act ─▌─▶ layer 3 ─▶ output ─▶ loss
                          B_2 s ─▶▌                   B_3 s ─▶▌                  ◀── e

A block is a Linear or Conv2d layer and the modules after it, up to the next such layer l. Its output h_l is that
layer's input and gets the gradient B_l s, which autograd backpropagates through the block. The last block gets the
error e = ∂loss/∂output itself. The signal s is e, its sign, or the target.

`e3>` in a plan sends the error of batch 3 from the last stage to all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._errors import one_of
from freewheel.corrections import Gradients
from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._credit import Credit
from freewheel.credit._graph import Cotangents, Graph
from freewheel.feedback import FeedbackOptions, FeedbackWeights, detached_inputs
from freewheel.feedback._numbering import StageLayers, number_stacked_layers
from freewheel.plan import GRADIENT, Message, Op, Schedule, Unit
from freewheel.stage import (
    Blueprint,
    Shape,
    Stage,
    Tree,
    Verbs,
    check_no_module_hooks,
    described,
    has_weights,
    to_device,
)

if TYPE_CHECKING:
    from freewheel.methods import Pipeline

Signal = Literal["error", "sign", "target"]
SIGNALS: tuple[Signal, ...] = ("error", "sign", "target")
ERROR = Message("e", "error", way=-1, made_by=Op.FORWARD, needed_by=Op.BACKWARD, broadcast=True)


@dataclass(frozen=True, kw_only=True)
class Feedback(FeedbackOptions, Credit):
    """Direct feedback: a signal from the output reaches the input of each layer through fixed random weights.

    Args:
        signal: `error`: the output error (`dfa`); `sign`: its sign (`sdfa`); `target`: the target (`drtp`).
        bound, own: See `FeedbackOptions`.
        joined: Whether a block continues in the next stage, which then sends its gradient; set by `bind`.
        layers: The layers of each stage, set by `bind`.

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
        """The error, unless the signal is the target; the gradient, if a block spans a boundary."""
        return (*([] if self.needs_targets else [ERROR]), *([GRADIENT] if self.joined else []))

    @property
    def needs_targets(self) -> bool:
        """Whether the target is the signal."""
        return self.signal == "target"

    @property
    def ties(self) -> bool:
        """No: a stage gets no gradient from later ones."""
        return False

    def check(self, pipeline: Pipeline) -> None:
        """Reject micro-batches."""
        if pipeline.micro > 1:
            raise ValueError(f"micro={pipeline.micro}: credit='feedback' has no micro-batches; leave it out")

    def check_captured(self, schedule: Schedule) -> None:
        """Accept."""

    def check_compiled(self) -> None:
        """Accept."""

    def bind(self, modules: Sequence[nn.Module]) -> Feedback:
        """Number the layers."""
        layers, joined = number_stacked_layers(modules)
        return replace(self, layers=layers, joined=joined)

    def build(self, blueprint: Blueprint) -> Stage:
        """Build a `FeedbackStage`."""
        return FeedbackStage(blueprint, self)


class FeedbackStage(ChainStage):
    """A stage whose blocks each learn from the signal."""

    def __init__(self, blueprint: Blueprint, feedback: Feedback) -> None:
        self._options = feedback
        super().__init__(blueprint)
        self.passes_back = self.index > 0 and feedback.joined
        self._layers = feedback.layers[self.index]
        self._numbered = self._layers.of(self.module)

    def check(self) -> None:
        """Reject backward hooks on modules, and a loss with weights."""
        super().check()
        check_no_module_hooks(self.module, self.index, "direct feedback")
        if has_weights(self.config.loss):
            raise ValueError(
                "loss has parameters, which direct feedback does not train: put them into the last stage's module, or "
                "use a method of the chain rule, such as 'pipedream'"
            )

    def verbs(self) -> Verbs:
        """Add the error, from the last stage to all."""
        return {
            **super().verbs(),
            ERROR.send: lambda unit: self._signals.get(unit),  # None for a micro-batch without samples
            ERROR.receive: self._take_signal,
        }

    def _forget(self) -> None:
        super()._forget()
        self._feedback = FeedbackWeights(self._options, self.config.seed)
        self._signals: dict[Unit, Tensor] = {}
        self._errors: dict[Unit, Tensor] = {}  # at the output, in the last stage

    def _pass(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Run a forward; a last stage that will recompute it sends its error before."""
        result = super()._pass(unit, x, target, share)
        if self.is_last and self.recomputes:
            stored = self._stored[unit]
            out, error = stored.output
            self._stored[unit] = stored._replace(output=out)
            self._know(unit, error * share, share)
        return result

    def _record(self, unit: Unit, x: Tree, target: Tree, share: float) -> tuple[list[Any], Shape]:
        """Run a forward and store its blocks, each with the number of the next layer, None for the last."""
        with torch.enable_grad(), self.weights.forward(self.version) as weights:
            leaves, spec, inputs = self._run(unit, x, target)
            (outputs, last), self._besides = self._besides, None
            out = self._stage_output(unit, leaves, share, last)
        blocks = [*outputs, (None if self.is_last or self._options.joined else self._layers.after, out)]
        blocks = [(number, h) for number, h in blocks if h.requires_grad]
        if self._inspects:
            self._inspect([h for _, h in blocks], weights)
        slots = [number for number, _ in blocks]
        self._graphs[unit] = Graph(inputs, [h for _, h in blocks], slots, weights, self.version)
        if self._options.needs_targets:
            signal = _one_hot(to_device(target, self.device), self._layers.outputs)
            self._signals[unit] = signal.to(out.dtype) * (share / len(out))
        return leaves, spec

    @property
    def learns_as_a_whole(self) -> bool:
        """False: the blocks learn one by one."""
        return False

    def _plain_call(self, x: Tree, target: Tree) -> tuple[Tree, Tree]:
        """Run the module, and return its blocks, too; in the last stage also the output and its error."""
        records, redone = torch.is_grad_enabled(), self.is_last and self.recomputes
        if not (records or redone):
            return super()._plain_call(x, target)
        with detached_inputs(self._numbered) as outputs:
            out = self.module(x)
        if not self.is_last:
            return out, (outputs, None)
        if not isinstance(out, Tensor):
            raise TypeError(f"the network returns {described(out)}: under credit='feedback' return one tensor")
        target, before = target if records and redone else (target, out)
        with torch.enable_grad():
            copy = before.detach().requires_grad_()
            loss = self._loss(copy, target)
        if not records:
            return loss.detach(), (out, torch.autograd.grad(loss, copy)[0])
        if self._compute is None:
            return loss, (outputs, (out, copy))
        return loss.detach(), (outputs, (out, torch.autograd.grad(loss, copy)[0]))

    def _stage_output(self, unit: Unit, leaves: list[Any], share: float, last: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the output of the stage; in the last stage also compute the error."""
        if not self.is_last:
            if len(leaves) != 1 or not isinstance(leaves[0], Tensor):
                raise TypeError(f"the module returns {len(leaves)} values: under credit='feedback' return one tensor")
            return leaves[0]
        assert last is not None
        out, error = last
        if self._compute is None:  # it is the copy that the loss depends on
            (error,) = torch.autograd.grad(leaves[0] * share, error)
        elif share != 1.0:
            error = error * share
        self._know(unit, error, share)
        return out

    def _know(self, unit: Unit, error: Tensor, share: float) -> None:
        """Store the error at the output of the network, and the signal."""
        self._errors[unit] = error
        if self._options.signal == "sign":
            self._signals[unit] = error.sign() * (share / len(error))
        elif self._options.signal == "error":
            self._signals[unit] = error

    def _enter_backward(self, stack: ExitStack, unit: Unit, graph: Graph) -> None:
        super()._enter_backward(stack, unit, graph)
        if self._checkpoints:
            stack.enter_context(detached_inputs(self._numbered))

    def _take_signal(self, unit: Unit, signal: Tensor | None) -> None:
        if signal is not None:
            self._signals[unit] = to_device(signal, self.device)

    def _stores(self) -> tuple[dict[Unit, Any], ...]:
        return *super()._stores(), self._signals, self._errors

    def _signals_of(self, unit: Unit) -> tuple[Any, ...]:
        return self._signals.pop(unit), self._errors.pop(unit, None)

    def _cotangents(self, graph: Graph, gradients: Gradients | None, *signals: Any) -> Cotangents:
        """Return the blocks' outputs and their gradients: of the last block from outside, of the others by feedback."""
        signal, error = signals
        if gradients is not None:
            (error,) = (None if g is None else to_device(g, self.device) for g in gradients)
        pairs = zip(graph.outputs, graph.gradient_slots)
        found = [(h, error if number is None else self._fed_back(number, h, signal)) for h, number in pairs]
        return [(h, gradient) for h, gradient in found if gradient is not None]

    def _fed_back(self, number: int, h: Tensor, signal: Tensor) -> Tensor:
        """Return B s for each sample: the gradient at the input h of a layer."""
        if len(signal) != len(h):
            raise ValueError(
                f"layer {number} has {len(h)} samples, but the network's output has {len(signal)}: under "
                "credit='feedback' every layer must keep the first dimension"
            )
        signal = signal.reshape(len(signal), -1).to(h.dtype)
        weights = self._feedback.of(number, (signal.shape[1], *h.shape[1:]), h)
        return (signal @ weights.flatten(1)).view(h.shape)


def _one_hot(target: Tree, outputs: int) -> Tensor:
    """Return classes as one-hot rows, and a target of floats unchanged."""
    if isinstance(target, Tensor) and target.is_floating_point():
        return target.reshape(len(target), -1)
    if isinstance(target, Tensor) and target.dim() == 1:
        return F.one_hot(target, outputs)
    raise TypeError(f"the target is {described(target)}: under 'drtp' give a class per sample, or a float per output")
