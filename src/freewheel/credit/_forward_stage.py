"""Stages that learn from a directional derivative, by forwards on dual numbers only.

::

    stage 0   (x, 0) ──F──▶ (h_1, o_1)          tangents u_k are drawn in F, and redrawn in the update
    stage 1                 (h_1, o_1) ──F──▶ (loss, d)
    d ──▶ every stage: its gradient is d·u_k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from freewheel.corrections import Gradients
from freewheel.credit._dual_loss import loss_and_derivative, loss_and_derivatives, no_loss
from freewheel.credit._dual_stage import DualInput
from freewheel.credit._dual_update import DualUpdateStage
from freewheel.credit._graph import gradient_norms
from freewheel.credit._parameters import padding_rows, parameter_names
from freewheel.plan import Message, Op, Unit
from freewheel.stage import (
    Blueprint,
    Live,
    Tree,
    Verbs,
    WeightVersions,
    check_no_hooks,
    check_no_module_hooks,
    check_not_compiled,
    flatten,
    to_device,
)
from freewheel.tangents import Derivatives, Directions, Dual, Passed, PendingBatch, Tangents

if TYPE_CHECKING:
    from freewheel.credit.forward import Forward

DERIVATIVE = Message("d", "directional derivative", way=-1, made_by=Op.FORWARD, needed_by=Op.UPDATE, broadcast=True)


class MicroResult(NamedTuple):
    """The result of a micro-batch at the last stage: its share of the loss, and its derivatives, under its number."""

    loss: Tensor
    size: int
    derivatives: Derivatives


class ForwardStage(DualUpdateStage):
    """A stage with forwards and updates only."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint, forward)
        self._forget()

    def verbs(self) -> Verbs:
        """Add directional derivatives, from the last stage to all."""
        return {
            **super().verbs(),
            DERIVATIVE.send: lambda unit: self._known[unit[0]],
            DERIVATIVE.receive: lambda unit, derivatives: self.learn(unit[0], derivatives),
        }

    def _make_directions(self) -> Directions:
        named = list(zip(parameter_names(self.blueprint), self.module.parameters()))
        groups = self.optimizer.param_groups if self.optimizer else ()
        alphas = {id(p): float(group.get("alpha", 1.0)) for group in groups for p in group["params"]}
        key, own = (self.config.seed, self.index), self.tangents.each == "micro"
        return Directions(
            self.tangents,
            key,
            named,
            alphas,
            padding_rows(self.module),
            self.device,
            per_micro_batch=own,
            launcher=lambda: self.launch,
        )

    def check(self) -> None:
        """Reject gradient hooks, since there is no backward, and optimizers of sparse gradients."""
        if isinstance(self.optimizer, torch.optim.SparseAdam):
            raise TypeError(
                f"optimizer of stage {self.index} is a SparseAdam, but forward gradients are dense: give Adam, or "
                "train with a method of the chain rule, such as 'pipedream'"
            )
        check_no_hooks(self.module, self.index, "a method of forward gradients")
        check_no_module_hooks(self.module, self.index, "a method of forward gradients")
        check_not_compiled(self.module, self.index, "a method of forward gradients")

    def _make_weights(self) -> WeightVersions:
        return Live(self.module)

    def _forget(self) -> None:
        self._batches: dict[int, PendingBatch] = {}
        self._results: dict[int, list[MicroResult]] = {}
        self._known: dict[int, Derivatives] = {}  # by batch, in their order
        self._gradients: Gradients = []

    def shift(self, batches: int) -> None:
        """Number pending batches anew."""
        super().shift(batches)
        for pending in self._batches.values():
            pending.batch += batches

    def repeat_update(self) -> None:
        """Count an update; one by parts has no corrections."""
        if self._needs_all():
            super().repeat_update()
        else:
            self._stepped()

    def pending(self) -> dict[str, Any]:
        """Add the batches that have not been learned from; none of them is half forwarded."""
        return {
            **super().pending(),
            "batches": {n: (each.batch, each.alphas, each.passed.encode()) for n, each in self._batches.items()},
            "known": self._known,
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore these batches."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        batches = pending["batches"].items()
        self._batches = {
            n: PendingBatch(batch, tuple(alphas), Passed.decode(each)) for n, (batch, alphas, each) in batches
        }
        self._known = pending["known"]

    def encode(self, message: Tree) -> Tree:
        """Convert a dual number to a pair; derivatives are plain already."""
        return tuple(message) if isinstance(message, Dual) else message

    def decode(self, message: Tree) -> Tree:
        """Invert `encode`."""
        return message if message is None or isinstance(message, dict) else Dual(*message)

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Run one dual pass per tangent. A share of 0 has no loss: a sequence before its end."""
        batch, given = unit[0], None
        if batch not in self._batches:
            self._batches[batch], given = self._directions.start(self.first_batch + batch, self.epoch)
        out = None if x is None else self._forward_samples(unit, x, target, size, share, weight, given)
        if self.is_last and unit[1] == self.schedule.micro - 1:
            self._known[batch] = self._derivatives(self._results.pop(batch))
        return out

    def _forward_samples(
        self, unit: Unit, x: Tree, target: Tree, size: int, share: float, weight: float, given: Tangents | None
    ) -> Tree:
        batch = unit[0]
        pending = self._batches[batch]
        if self.launch.fixed and self.tangents.draws_on_cpu:  # a graph cannot draw there
            keys = [self._tangent_key(unit, p) for p in range(self.tangents.tangents)]
            given = self._directions.draw_all(pending, [key for key in keys if key not in pending.passed.tangents])
        own, fed = ((x,), (target, given)) if self.index else ((), (x, target, given))
        settings = pending.alphas, pending.passed if unit[1] else None, share, weight
        out, pending.passed, result = self.launch("forward", unit, self._forward, *settings, *own, fed=fed)
        if result is not None:
            loss, derivatives = result
            self._results.setdefault(batch, []).append(MicroResult(self.launch.kept(loss), size, derivatives))
        return out

    def _forward(
        self,
        unit: Unit,
        alphas: tuple[float, ...],
        passed: Passed | None,
        share: float,
        weight: float,
        x: Tree,
        target: Tree,
        given: Tangents | None,
    ) -> tuple[Tree, Passed, tuple[Tensor, Derivatives] | None]:
        """Return the message or the loss, what the update needs, and the last stage's share of loss and derivatives.

        Args:
            unit: The micro-batch.
            alphas: The scale of each parameter.
            passed: What earlier micro-batches have left for the update.
            share, weight, x, target: As in `forward`.
            given: Tangents of the user, or drawn ahead.
        """
        passed = Passed() if passed is None else passed.copy()
        passed.tangents |= given or {}
        pending = PendingBatch(self.first_batch + unit[0], alphas, passed)
        x = to_device(x, self.device)
        values, tangents = x if self.index else (x, [])
        leaves, shape = flatten(values)
        self._has_loss = share > 0
        none: list[list[Tensor | None]] = [[None] * len(leaves)] * self.tangents.tangents
        out = self._passes(unit, pending, DualInput(leaves, shape, tangents or none, target, share > 0))
        if not self.is_last:
            return self._message(out, pending), passed, None
        loss = out[0][0]
        derivatives = torch.stack([d for _, (d,) in out]) * (share * weight)  # pyright: ignore
        number = self.first_micro_batch + unit[1] if self._separate else self.replica
        return loss, passed, (loss * share, {number: derivatives})

    @property
    def _separate(self) -> bool:
        """Whether each micro-batch has its own derivatives."""
        return self.tangents.each == "micro" or self.tangents.perturb == "activations"

    def _finish(self, out: Tree, target: Tree) -> tuple[Tensor, Tensor]:
        """Return the loss and its directional derivative, per sample with perturbed activations."""
        per_sample = self.tangents.perturb == "activations"
        if not self._has_loss:
            return no_loss(out, per_sample=per_sample)
        found = loss_and_derivatives if per_sample else loss_and_derivative
        return found(lambda out: self._loss(out, target), out)

    def learn(self, batch: int, derivatives: Derivatives) -> None:
        """Store the directional derivatives of a batch for its update."""
        moved = {number: d.to(self.device) for number, d in derivatives.items() if d.device != self.device}
        self._known[batch] = derivatives | moved if moved else derivatives

    @property
    def _learns(self) -> tuple[PendingBatch, Derivatives]:
        """The batch of the next update."""
        batch = next(iter(self._batches))
        return self._batches[batch], self._known[batch]

    def _derivatives(self, results: list[MicroResult]) -> Derivatives:
        loss, size, derivatives = results[0]
        if len(results) > 1:
            loss, size = torch.stack([r.loss for r in results]).sum(0), sum(r.size for r in results)
            derivatives = {number: d for r in results for number, d in r.derivatives.items()}
            if not self._separate:
                derivatives = {self.replica: torch.stack([r.derivatives[self.replica] for r in results]).sum(0)}
        self.losses.append((loss, size))
        return derivatives

    def contribution(self) -> tuple[Derivatives, list[int]]:
        """Return this replica's directional derivatives and used parameters."""
        pending, derivatives = self._learns
        return derivatives, sorted(pending.passed.used)

    def all_reduce(self, contributions: Sequence[tuple[Derivatives, list[int]]]) -> None:
        """Collect all derivatives; the update redraws the tangents of the other replicas."""
        pending, every, used_by = self._learns[0], {}, {}
        for derivatives, used in contributions:
            every |= to_device(derivatives, self.device)
            used_by |= {number: set(used) for number in derivatives}
        batch = next(iter(self._batches))
        self._batches[batch] = replace(pending, passed=replace(pending.passed, used_by=used_by))
        self._known[batch] = every

    def norms(self) -> Tensor:
        """Return the norm of each weight's gradient, for global clipping."""
        self._gradients = self._all_gradients()
        return gradient_norms(self._gradients, self.device)

    def update(self, batch: int) -> None:
        """Make the update of a batch."""
        super().update(batch)
        del self._batches[batch], self._known[batch]

    def _update(self) -> None:
        """Apply d·u, a few parameters at a time unless all gradients are needed at once.

        Gradients then take no more memory than the largest parameter.
        """
        if self._needs_all():
            gradients = self._gradients or self._all_gradients()
            self._apply(gradients, self.weights.live)
        else:
            pending, derivatives = self._learns
            settings = pending.alphas, pending.passed
            self.launch("update", self._learning, self._step_by_parts, *settings, fed=(derivatives,))
            self._stepped()
            self.version += 1
        self._gradients = []

    def _all_gradients(self) -> Gradients:
        pending, derivatives = self._learns
        unit, settings = (pending.batch - self.first_batch, 0), (pending.alphas, pending.passed)
        return self.launch("gradient", unit, self._gradients_of, *settings, fed=(derivatives,))
