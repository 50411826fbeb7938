"""Stages that update their weights by d·u: the tangents are drawn again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from freewheel.corrections import Gradients
from freewheel.credit._dual_stage import DualStage
from freewheel.credit._fused_update import STEPS, FusedUpdate
from freewheel.plan import Unit
from freewheel.stage import Blueprint, NotYetError, add, align_gradient, has_state
from freewheel.tangents import Derivatives, Passed, PendingBatch

if TYPE_CHECKING:
    from freewheel.credit.forward import Forward

# Optimizers that treat each parameter independently, so that a step may be split by parameters.
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
HYPER = (
    *("momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    *("betas", "eps", "amsgrad", "decoupled_weight_decay"),
)


class DualUpdateStage(DualStage):
    """A stage that computes d·u, and steps its optimizer with it."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint, forward)
        self._hyper = self._read_hyper()  # before a scheduler changes any

    def begin(self, batches_before: int, epochs_before: int) -> None:
        """Start a run: parameters and groups of the optimizer may have changed."""
        super().begin(batches_before, epochs_before)
        self._fused: dict[Any, FusedUpdate] = {}  # by the used parameters

    def _needs_all(self) -> bool:
        """Whether anything needs all gradients of a batch at once."""
        optimizer = self.optimizer
        elementwise = type(optimizer) in ELEMENTWISE and not optimizer._optimizer_step_pre_hooks  # pyright: ignore
        elementwise = elementwise and not optimizer._optimizer_step_post_hooks  # pyright: ignore
        clips, perturbs = self.config.clip is not None, self.tangents.perturb == "activations"
        return bool(self.corrections) or clips or perturbs or not elementwise

    def _read_hyper(self) -> list[list[Any]]:
        groups = self.optimizer.param_groups if self.optimizer else []
        return [[group.get(name) for name in HYPER] for group in groups]

    @torch.no_grad()
    def _step_by_parts(self, unit: Unit, alphas: tuple[float, ...], passed: Passed, derivatives: Derivatives) -> None:
        """Update a few parameters at a time, or all in one compiled function."""
        pending = PendingBatch(self.first_batch + unit[0], alphas, passed)
        if self._may_fuse(pending):
            self._step_fused(pending, derivatives)
        else:
            self._trickle(self._with_tangents(pending, derivatives), derivatives)

    def _may_fuse(self, pending: PendingBatch) -> bool:
        """Whether one compiled function can do it; the answer does not depend on what came before a checkpoint."""
        optimizer, used = self.optimizer, pending.passed.used
        if optimizer is None or type(optimizer) not in STEPS:
            return False
        if not self._counts or not used or pending.passed.used_by:
            return False
        plain = not any(group.get("amsgrad") or group.get("differentiable") for group in optimizer.param_groups)
        weights = [self._directions.parameters[i] for i in used]
        return plain and self._read_hyper() == self._hyper and has_state(optimizer, weights)

    def _step_fused(self, pending: PendingBatch, derivatives: Derivatives) -> None:
        counted, used = self._directions.counted, tuple(sorted(pending.passed.used))
        given = [t for which in derivatives for t in counted.given(pending, which)]
        key = used, len(given), len(derivatives)
        assert self.optimizer is not None
        if key not in self._fused:
            if self.launch.captures:
                raise NotYetError
            count, weights = self.tangents.tangents, self._directions.parameters
            self._fused[key] = FusedUpdate(self.optimizer, counted, used, weights, count)
        with self.launch.sized(self.optimizer, 1.0):
            sizes = [torch.as_tensor(group["lr"], device=self.device) for group in self.optimizer.param_groups]
            self._fused[key](given, list(derivatives.values()), [size.float() for size in sizes])

    def _with_tangents(self, pending: PendingBatch, derivatives: Derivatives) -> PendingBatch:
        """Add the tangents to a batch, where they are drawn by kernels."""
        if not self._counts:
            return pending
        drawn = self._directions.counted.draw_all(pending, list(derivatives))
        return replace(pending, passed=replace(pending.passed, tangents=drawn))

    def _trickle(self, pending: PendingBatch, derivatives: Derivatives) -> None:
        """Step the optimizer whenever the gradients are as large as the largest parameter."""
        held, largest = 0, max((p.numel() for p in self.weights.live), default=0)
        for index, weight in enumerate(self._directions.parameters):
            weight.grad = align_gradient(self._directions.gradient(pending, derivatives, index), weight)
            held += 0 if weight.grad is None else weight.numel()
            if held >= largest:
                self._step()
                held = 0
        self._step()  # even without gradients left, so that the optimizer counts the step

    @torch.no_grad()
    def _gradients_of(
        self, unit: Unit, alphas: tuple[float, ...], passed: Passed, derivatives: Derivatives
    ) -> Gradients:
        """Return the gradients of all parameters."""
        pending = PendingBatch(self.first_batch + unit[0], alphas, passed)
        pending = self._with_tangents(pending, derivatives)
        of_activations = self._directions.activation_gradients(pending, derivatives)
        of_weights = (
            (i, self._directions.gradient(pending, derivatives, i))
            for i, p in enumerate(self._directions.parameters)
            if p.requires_grad
        )
        return [add(g, of_activations.get(i)) for i, g in of_weights]
