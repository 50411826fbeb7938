"""`synthetic`: a stage learns from a predicted gradient, and its predictor from the true one that arrives later.

::

    stage 0   x ──F──▶ h_1 ──▶ predictor ──▶ ĝ_1 ──B──▶ update        at once
    stage 1            h_1 ──F──▶ … ──B──▶ g_1                        from its own prediction, or the loss
    stage 0   predictor fitted to g_1                                 `lag` batches later

`S3@3` in a plan is fit number 3 of the predictor, to the received gradient of batch 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel.corrections import Gradients
from freewheel.credit._auxiliary import Auxiliary, AuxiliaryStage
from freewheel.credit._credit import Credit
from freewheel.credit._graph import StoredInput
from freewheel.credit._predictors import Predictor, PredictorOptions
from freewheel.credit._shapes import Kind, network_outputs
from freewheel.credit.local import check_immediate
from freewheel.plan import Action, Message, Op, Schedule, StageRules, Unit, followed_up
from freewheel.stage import Blueprint, Stage, Tree, Verbs, scratch_buffers, to_device

if TYPE_CHECKING:
    from freewheel.methods import Pipeline

FIT = Op("S", "fit")
GRADIENT = Message("g", "gradient", way=-1, made_by=Op.BACKWARD, needed_by=FIT)  # late: for the fit, not the backward


@dataclass(frozen=True, kw_only=True)
class Synthetic(PredictorOptions, Credit):
    """Synthetic gradients: each stage but the last learns from a predicted one. See `PredictorOptions` for the options.

    Example:
        >>> import freewheel as fw
        >>> print(fw.plan(fw.Pipeline(credit=fw.Synthetic(lag=0), delays=(0, 0)), k=2, batches=2))
        plan pipeline: credit=synthetic lag=0 delays=0,0 batches=2
        time     0     1      2      3          4      5      6
        stage 0  F0@0  B0@0!  .      S0@0 F1@1  B1@1!  .      S1@1
        stage 1  .     F0@0   B0@0!  .          F1@1   B1@1!  .
    """

    name: ClassVar[str] = "synthetic"
    family: ClassVar[str] = "synthetic"
    plan_fields: ClassVar[tuple[str, ...]] = ("labels", "lag")
    extra: ClassVar[Op | None] = FIT

    @property
    def messages(self) -> tuple[Message, ...]:
        """The gradient, for the fit."""
        return (GRADIENT,)

    @property
    def needs_targets(self) -> bool:
        """Whether predictors see the label."""
        return self.labels

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        """Add the fits."""
        work = super().actions(schedule, stage, batches)
        return followed_up(work, FIT, self.lag) if stage < schedule.stages - 1 else work

    def broken_rule(self, action: Action, rules: StageRules) -> str | None:
        """Check the lag of fits."""
        lag, drained = rules.version - 1 - action.batch, rules.version == rules.batches
        if action.op is not FIT or lag == self.lag or (drained and 0 <= lag < self.lag):
            return None
        return f"the stage has learned from {lag} batches beyond it, but the declared lag is {self.lag}"

    @property
    def ties(self) -> bool:
        """No: only gradients of activations are predicted."""
        return False

    def check(self, pipeline: Pipeline) -> None:
        """Reject delays and micro-batches."""
        check_immediate(self.name, pipeline)

    def check_replicas(self, replicas: int, pipeline: Pipeline) -> None:
        """Reject replicas: predictors are not all-reduced."""
        raise ValueError(
            f"replicas={replicas} with {pipeline.title}: predictors are not all-reduced; use 'dgl', or one replica"
        )

    def check_compiled(self) -> None:
        """Accept: predictors run as they are."""

    def bind(self, modules: Sequence[nn.Module]) -> Synthetic:
        """Find the number of labels."""
        known = self.classes is not None or not self.labels or len(modules) == 1
        return self if known else replace(self, classes=network_outputs(modules))

    def build(self, blueprint: Blueprint) -> Stage:
        """Build a `SyntheticStage`."""
        return SyntheticStage(blueprint, self)

    def head_settings(self) -> Any:
        """Return the predictors' options."""
        return self.settings()


class SyntheticStage(AuxiliaryStage):
    """A stage with a predictor, whose stored inputs are the outputs that await their fit.

    A predictor returns the gradient times the number of samples, which for a mean loss does not depend on that number.
    """

    def __init__(self, blueprint: Blueprint, synthetic: Synthetic) -> None:
        self._options = synthetic
        super().__init__(blueprint, synthetic.optimizer)

    def verbs(self) -> Verbs:
        """Add fits, which use the received gradients; backwards do not."""

        def fit(unit: Unit) -> None:
            assert self._output_gradients is not None
            self.fit(unit, self._output_gradients)
            self._output_gradients = None

        def backward(unit: Unit) -> None:
            self._input_gradients = self.backward(unit, None)

        return {**super().verbs(), Op.BACKWARD: backward, FIT: fit}

    def _network(self, kinds: Sequence[Kind]) -> nn.Module:
        return Predictor(kinds, self._options, self._options.classes or 0)

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Run the module, and store its output for the predictor."""
        out = super().forward(unit, x, target, size, share, weight)
        graph = self._graphs[unit]
        if not self.is_last and graph.outputs:
            seen = {slot: t.detach() for slot, t in zip(graph.gradient_slots, graph.outputs)}
            self._stored[unit] = StoredInput(seen, target if self._options.labels else None, 1.0)
        return out

    def backward(self, unit: Unit, gradients: Gradients | None) -> Gradients:
        """Backpropagate the predicted gradient; in the last stage, that of the loss."""
        stored = self._stored.get(unit)
        if self.is_last or stored is None:
            return super().backward(unit, None)
        slots, seen = zip(*stored.inputs.items())
        own = self._network_for(seen)
        with torch.no_grad(), scratch_buffers(own.module):  # running statistics are those of the fits
            predicted = self._predicted(own, seen, stored.target)
        found = {slot: g.to(h.dtype) / len(h) for slot, g, h in zip(slots, predicted, seen)}
        return super().backward(unit, [found.get(slot) for slot in range(max(slots) + 1)])

    def _predicted(self, own: Auxiliary, seen: Sequence[Tensor], target: Tree) -> list[Tensor]:
        dtype = own.weights[0].dtype
        return own.module([h.to(dtype) for h in seen], to_device(target, self.device))

    def fit(self, unit: Unit, gradients: Gradients) -> None:
        """Step the predictor towards the gradient of a stored output."""
        stored = self._stored.pop(unit, None)
        if stored is None:
            return
        seen = list(stored.inputs.values())
        own = self._network_for(seen)
        with torch.enable_grad():
            predicted = self._predicted(own, seen, stored.target)
            true = [gradients[slot] for slot in stored.inputs]
            errors = [
                F.mse_loss(p, (to_device(g, self.device) * len(g)).to(p.dtype))
                for p, g in zip(predicted, true)
                if g is not None
            ]
        if errors:
            own.add_gradients(torch.autograd.grad(sum(errors), own.weights, allow_unused=True))  # pyright: ignore
            self._step_auxiliary()
