"""Recipes: the optimizer, the step sizes and the number of epochs of a training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from freewheel._config import OptimizerFactory, SchedulerFactory


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained, with step sizes that depend on the epoch.

    Args:
        optimizer: `sgd` or `adam`.
        lr: The step size.
        momentum: That of SGD.
        weight_decay: That of both.
        batch_size: Samples in a batch.
        epochs: Passes over the data, at most.
        milestones: Epochs after which the step size is divided by 10.
        warmup: Epochs before with `warmup_lr`.
        warmup_lr: Their step size.
        cosine: The epochs in which the step size falls to 0 along a cosine, after the warm-up; 0 for none.
        patience: Epochs without a better accuracy after which the training ends; 0 for never.

    Example:
        >>> fdg = Recipe(lr=0.1, epochs=300, milestones=(150, 225, 275), warmup=3, warmup_lr=0.01)
        >>> [round(fdg.rate(epoch), 6) for epoch in (0, 3, 149, 150, 275)]
        [0.01, 0.1, 0.1, 0.01, 0.0001]
    """

    optimizer: str = "sgd"
    lr: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    epochs: int
    milestones: tuple[int, ...] = ()
    warmup: int = 0
    warmup_lr: float = 0.0
    cosine: int = 0
    patience: int = 0

    def rate(self, epoch: int) -> float:
        """The step size in an epoch, counted from 0."""
        if epoch < self.warmup:
            return self.warmup_lr
        rate = self.lr * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)
        if self.cosine:
            rate *= (1 + math.cos(math.pi * min(1.0, (epoch - self.warmup) / self.cosine))) / 2
        return rate

    def scaled(self, epochs: int) -> Recipe:
        """The same in fewer epochs, with the changes of the step size at the same parts of the training.

        Example:
            >>> Recipe(lr=0.1, epochs=300, milestones=(150, 225), warmup=3, warmup_lr=0.01).scaled(4).milestones
            (2, 3)
        """
        share = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(round(milestone * share) for milestone in self.milestones),
            warmup=round(self.warmup * share),
            cosine=math.ceil(self.cosine * share),
            patience=math.ceil(self.patience * share),
        )

    def factory(self) -> OptimizerFactory:
        """What makes an optimizer of some parameters."""
        if self.optimizer == "adam":
            return partial(torch.optim.Adam, lr=self.lr, weight_decay=self.weight_decay)
        return partial(torch.optim.SGD, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def schedule(self, batches: int) -> SchedulerFactory | None:
        """What makes the scheduler, for epochs of this number of batches; None for a constant step size."""
        if not (self.milestones or self.warmup or self.cosine):
            return None
        return partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=self._factor(batches))

    def _factor(self, batches: int) -> Callable[[int], float]:
        """The step size of a batch, relative to `lr`; a function, of which checkpoints store nothing."""
        return lambda batch: self.rate(batch // batches) / self.lr
