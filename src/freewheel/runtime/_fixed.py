"""What a CUDA graph of a stage holds on to: memory, numbers and settings that were read when it was captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.stage import Stage, tensors_of

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # whose steps can be captured with the same bits
_PLAIN = (int, float, bool, str, type(None))


class Fingerprint(NamedTuple):
    """The places of a stage's tensors, and its modules' settings."""

    weights: tuple[Any, ...]
    settings: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    def check_same(self, after: Fingerprint, stage: int) -> None:
        """Reject a stage that was changed from outside while it was trained."""
        if self == after:
            return
        found = (
            f"{a} of module {n!r}"
            for (n, old), (_, new) in zip(self.settings, after.settings)
            for a, _ in set(new) - set(old)
        )
        what = next(found, "the memory of a weight")
        raise ValueError(
            f"{what} of stages[{stage}] has changed during a fit, which CUDA graphs do not see: call fit once for each "
            "setting"
        )

    def check_repeatable(self, after: Fingerprint, stage: int) -> None:
        """Reject a module that has changed numbers of its own in a forward."""
        for (name, before), (_, now) in zip(self.settings, after.settings):
            for attribute, value in now:
                if (attribute, value) not in before:
                    raise ValueError(
                        f"module {name!r} of stages[{stage}] sets its attribute {attribute!r} in forward, which a CUDA "
                        "graph would do only once: make it a buffer and change that in place, or use runtime='threads'"
                    )


def fingerprint_of(stage: Stage) -> Fingerprint:
    """Return what must not change between a capture and a replay."""
    tensors = tensors_of(stage.module).values()
    return Fingerprint(
        tuple((t.data_ptr(), t.shape, t.stride(), t.requires_grad) for t in tensors),
        tuple((name, _settings(module)) for name, module in stage.module.named_modules()),
    )


def _settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in vars(module).items() if type(value) in _PLAIN)


def may_capture_updates(stage: Stage) -> bool:
    """Whether an update is the same for every batch, but for tensors and the step size."""
    optimizer = stage.optimizer
    if optimizer is None or type(optimizer) not in FUSED or stage.schedule.norms or not stage.corrections.steady:
        return False
    groups = optimizer.param_groups
    if not all(p.is_floating_point() for group in groups for p in group["params"]):
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if any(isinstance(group["lr"], Tensor) or group["differentiable"] for group in groups):
        return False
    return has_form_of_device(optimizer)


def has_form_of_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is made in the form that can read its size on the device."""
    sgd = type(optimizer) is torch.optim.SGD
    return all(group["fused"] or (sgd and group["foreach"]) for group in optimizer.param_groups)


class StepSizes:
    """The step sizes of an optimizer, on the device, for a captured step; its other settings are fixed."""

    def __init__(self, stage: Stage) -> None:
        assert stage.optimizer is not None
        self._groups = stage.optimizer.param_groups
        self._sizes = [torch.zeros((), device=stage.device) for _ in self._groups]
        self._values = [float("nan")] * len(self._groups)
        self._read = [itemgetter(*(name for name in group if name not in ("params", "lr"))) for group in self._groups]
        self._settings = [read(group) for read, group in zip(self._read, self._groups)]
        self._scale = 1.0

    def holds(self) -> bool:
        """Whether all other settings are those of the captured step."""
        return [read(group) for read, group in zip(self._read, self._groups)] == self._settings

    def fill(self) -> None:
        """Write the step sizes of the next step."""
        for i, group in enumerate(self._groups):
            value = group["lr"] * self._scale
            if value != self._values[i]:
                self._sizes[i].fill_(value)
                self._values[i] = value

    @contextmanager
    def on_device(self, scale: float) -> Iterator[None]:
        """Let the optimizer read them inside the context."""
        self._scale, before = scale, [dict(group) for group in self._groups]
        for group, size in zip(self._groups, self._sizes):
            group.update({"lr": size, "fused": True, "foreach": False})
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
        finally:
            for group, values in zip(self._groups, before):
                group.update(values)
