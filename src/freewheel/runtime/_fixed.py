"""What a CUDA graph of a stage holds on to: memory, numbers and settings that were read when it was captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import optimizer as optim  # pyright: ignore[reportAttributeAccessIssue]

from freewheel.stage import Stage, changed_setting, settings_of, tensors_of

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # whose steps can be captured with the same bits


class NotCapturedError(ValueError):
    """Raised for a function that cannot be captured."""


class Fingerprint(NamedTuple):
    """The places of a stage's tensors, and its settings by name."""

    weights: tuple[Any, ...]
    settings: dict[str, Any]

    def changed(self, after: Fingerprint) -> str:
        """Return the first setting that is not the same afterwards."""
        return changed_setting(self.settings, after.settings)

    def check_same(self, after: Fingerprint, stage: int) -> None:
        """Reject a stage that was changed from outside while it was trained."""
        changed = self.changed(after) or ("" if self.weights == after.weights else "the memory of a weight")
        if changed:
            raise ValueError(
                f"{changed} of stages[{stage}] has changed during a fit, which CUDA graphs do not see: call fit once "
                "for each setting"
            )


def fingerprint_of(stage: Stage) -> Fingerprint:
    """Return what must not change between a capture and a replay."""
    tensors, optimizer = tensors_of(stage.module).values(), stage.optimizer
    settings = settings_of(stage.module.named_modules())
    if optimizer is not None:
        settings["the step hooks"] = len(_step_hooks(optimizer))
    hooks = tuple(len(p._backward_hooks or ()) for p in stage.module.parameters())
    return Fingerprint((*((t.data_ptr(), t.shape, t.stride(), t.requires_grad) for t in tensors), hooks), settings)


def _step_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the hooks that are called in every step of an optimizer."""
    of_all = optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return [hook for hooks in (*of_all, *own) for hook in hooks.values()]


def may_capture_updates(stage: Stage) -> bool:
    """Whether an update is the same for every batch, but for tensors and the step size."""
    optimizer = stage.optimizer
    if optimizer is None or type(optimizer) not in FUSED or stage.schedule.norms or not stage.corrections.steady:
        return False
    groups = optimizer.param_groups
    if not all(p.is_floating_point() for group in groups for p in group["params"]):
        return False
    # The step size on the device is a float32.
    if any(p.dtype is torch.float64 for group in groups for p in group["params"]) or _step_hooks(optimizer):
        return False
    if any(isinstance(group["lr"], Tensor) or group["differentiable"] for group in groups):
        return False
    return has_form_of_device(optimizer)


def has_form_of_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is made in a form that has the same bits with its size on the device.

    The fused form of SGD reads a size on the device as a float32, and one of the host as a float64.
    """
    form = "foreach" if type(optimizer) is torch.optim.SGD else "fused"
    return all(group[form] for group in optimizer.param_groups)


class StepSizes:
    """The step sizes of an optimizer, on the device, for a captured step; its other settings are fixed."""

    def __init__(self, stage: Stage) -> None:
        assert stage.optimizer is not None
        self._groups = stage.optimizer.param_groups
        self._sizes = [torch.zeros((), device=stage.device) for _ in self._groups]
        self._values = [float("nan")] * len(self._groups)
        self._read = [itemgetter(*(name for name in group if name not in ("params", "lr"))) for group in self._groups]
        self._settings = [read(group) for read, group in zip(self._read, self._groups)]
        self._optimizer, self._state = stage.optimizer, _state_of(stage.optimizer)
        self._scale = 1.0

    def holds(self) -> bool:
        """Whether all other settings are those of the captured step."""
        return [read(group) for read, group in zip(self._read, self._groups)] == self._settings

    def check_state(self, stage: int) -> None:
        """Reject an optimizer whose state is at another place than in the captured step. Other weights may get one."""
        if not self._state.items() <= _state_of(self._optimizer).items():
            raise ValueError(
                f"the optimizer state of stages[{stage}] was replaced during a fit, which CUDA graphs do not see: "
                "change its tensors in place, or call fit again"
            )

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


def _state_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], int]:
    """Return where the state of an optimizer is, by weight and name."""
    return {
        (id(weight), name): id(value)
        for weight, state in optimizer.state.items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
