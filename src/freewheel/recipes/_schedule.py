"""Step size schedules as data, built from those of `torch.optim.lr_scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from freewheel._errors import number, of_type, one_of, whole_number

SHAPES = ("constant", "multistep", "cosine")
WARMUPS = ("constant", "linear")
EVERY = ("epoch", "batch")


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """How the step size goes from epoch to epoch. All epochs are counted from 0 at the start of the training.

    Args:
        shape: `constant`, `multistep` (multiplied by `gamma` at each of the `milestones`) or `cosine` (to 0).
        milestones: The first epochs with a smaller step size.
        gamma: What the step size is multiplied by there.
        t_max: The epochs in which a cosine goes to 0, after the warm-up; by default all that are left.
        warmup_epochs: The epochs of the warm-up, after which the step size is that of the optimizer.
        warmup_lr: The step size of the warm-up.
        warmup: Whether it stays there (`constant`) or grows from there to that of the optimizer (`linear`).
        every: Whether the step size changes after an `epoch` or after every `batch`.

    Example:
        >>> schedule = LRSchedule(shape="multistep", milestones=(4, 6), warmup_epochs=2, warmup_lr=0.01)
        >>> [float(f"{lr:.6g}") for lr in schedule.step_sizes(lr=0.1, epochs=8)]
        [0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    """

    shape: Literal["constant", "multistep", "cosine"] = "constant"
    milestones: Sequence[int] = ()
    gamma: float = 0.1
    t_max: int | None = None
    warmup_epochs: int = 0
    warmup_lr: float | None = None
    warmup: Literal["constant", "linear"] = "constant"
    every: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        one_of("shape", self.shape, SHAPES)
        one_of("warmup", self.warmup, WARMUPS)
        one_of("every", self.every, EVERY)
        whole_number("warmup_epochs", self.warmup_epochs, least=0)
        number("gamma", self.gamma, above=0, hint="the factor of the step size at a milestone")
        if (self.warmup_lr is None) == bool(self.warmup_epochs):
            raise ValueError(
                f"warmup_lr={self.warmup_lr} with warmup_epochs={self.warmup_epochs}: give both, or neither"
            )
        if self.warmup_lr is not None:
            number("warmup_lr", self.warmup_lr, above=0, hint="the step size of the warm-up")
        if self.t_max is not None:
            whole_number("t_max", self.t_max, least=1)
        self._check_milestones()

    def _check_milestones(self) -> None:
        given = tuple(of_type("milestones", self.milestones, Sequence, "give a list of epochs, such as (150, 225)"))
        object.__setattr__(self, "milestones", given)
        if bool(given) != (self.shape == "multistep"):
            raise ValueError(f"milestones={given} with shape={self.shape!r}: multistep needs them, and no other shape")
        before = self.warmup_epochs
        for milestone in given:
            if whole_number("milestones", milestone, least=1) <= before:
                raise ValueError(
                    f"milestones={given} after {self.warmup_epochs} epochs of warm-up: each must be later than the "
                    "one before, and than the warm-up"
                )
            before = milestone

    @property
    def fixed(self) -> bool:
        """Whether the step size never changes."""
        return self.shape == "constant" and not self.warmup_epochs

    def factory(self, epochs: int, batches: int | None = None) -> Callable[[Optimizer], LRScheduler] | None:
        """What `Trainer(scheduler=…, scheduler_every=schedule.every)` takes; it can be pickled.

        Args:
            epochs: The epochs of the training.
            batches: The batches of an epoch, for a schedule that changes with every batch.
        """
        if self.fixed:
            return None
        if self.every == "epoch":
            return partial(_build, schedule=self, epochs=epochs, steps=1)
        return partial(_build, schedule=self, epochs=epochs, steps=whole_number("batches", batches, least=1))

    def scaled(self, before: int, epochs: int) -> LRSchedule:
        """The same shape in another number of epochs.

        Example:
            >>> LRSchedule(shape="multistep", milestones=(150, 225, 275)).scaled(300, 12).milestones
            (6, 9, 11)
        """
        share = epochs / before
        warmup = max(1, round(self.warmup_epochs * share)) if self.warmup_epochs else 0
        marks: list[int] = []
        for milestone in self.milestones:
            marks.append(max(round(milestone * share), (marks[-1] if marks else warmup) + 1))
        whole = self.t_max is not None and self.warmup_epochs + self.t_max == before  # it ends with the training
        t_max = self.t_max and max(1, epochs - warmup if whole else round(self.t_max * share))
        return replace(self, milestones=tuple(marks), t_max=t_max, warmup_epochs=warmup)

    def step_sizes(self, lr: float, epochs: int) -> list[float]:
        """The step size of each epoch, or at the beginning of it where it changes with every batch.

        Example:
            >>> [round(lr, 4) for lr in LRSchedule(shape="cosine").step_sizes(lr=1.0, epochs=4)]
            [1.0, 0.8536, 0.5, 0.1464]
        """
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        make = replace(self, every="epoch").factory(epochs)
        scheduler, found = make and make(optimizer), list[float]()
        for _ in range(epochs):
            found.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return found

    def __str__(self) -> str:
        form = {
            "constant": "constant",
            "multistep": f"times {self.gamma:g} at epochs {', '.join(map(str, self.milestones))}",
            "cosine": "cosine" if self.t_max is None else f"cosine of {self.t_max} epochs",
        }[self.shape]
        if not self.warmup_epochs:
            return form
        kind = "at" if self.warmup == "constant" else "from"
        plural = "" if self.warmup_epochs == 1 else "s"
        return f"{self.warmup_epochs} epoch{plural} of warm-up {kind} {self.warmup_lr:g}, then {form}"


def _build(optimizer: Optimizer, *, schedule: LRSchedule, epochs: int, steps: int) -> LRScheduler:
    """The scheduler of an optimizer; it is stepped `steps` times in an epoch."""
    warmup = schedule.warmup_epochs
    main = _main(optimizer, schedule, max(1, epochs - warmup), steps)
    if not warmup or schedule.warmup_lr is None:
        return main
    lr = float(optimizer.defaults["lr"])
    if schedule.warmup_lr > lr:
        raise ValueError(f"warmup_lr={schedule.warmup_lr:g} with lr={lr:g}: a warm-up has the smaller step size")
    factor, length = schedule.warmup_lr / lr, warmup * steps
    first = (
        lr_scheduler.ConstantLR(optimizer, factor=factor, total_iters=length)
        if schedule.warmup == "constant"
        else lr_scheduler.LinearLR(optimizer, start_factor=factor, total_iters=length)
    )
    return lr_scheduler.SequentialLR(optimizer, [first, main], [length])


def _main(optimizer: Optimizer, schedule: LRSchedule, epochs: int, steps: int) -> LRScheduler:
    """The scheduler after the warm-up, which counts from there."""
    if schedule.shape == "multistep":
        marks = [(milestone - schedule.warmup_epochs) * steps for milestone in schedule.milestones]
        return lr_scheduler.MultiStepLR(optimizer, marks, schedule.gamma)
    if schedule.shape == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=(schedule.t_max or epochs) * steps)
    return lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
