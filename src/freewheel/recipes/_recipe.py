"""A recipe: all that a paper says about how it trains, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from freewheel._errors import number, one_of, whole_number
from freewheel.recipes._schedule import LRSchedule
from freewheel.recipes._statistics import OVER, Statistics
from freewheel.tangents import Transfer
from freewheel.trainer import Callback, EarlyStopping, History

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a paper trains some networks on some data.

    Args:
        name: Its name.
        paper: The name that stands for all recipes of the paper; see `fw.recipes.find`.
        source: Where the paper says so.
        methods: The methods that are trained so, the paper's own first.
        data: The data sets.
        models: The networks.
        stages: The number of stages, if the paper has one that is the first to try.
        least_stages: With this number of stages or more the recipe is for any network.
        epochs: Passes over the training data.
        batch_size: Samples in a batch.
        optimizer: `sgd`, `adam` or `adamw`.
        lr: The step size, after a warm-up.
        momentum: That of sgd.
        weight_decay: The weight decay.
        schedule: How the step size goes from epoch to epoch.
        augment: Whether images are cropped and flipped at random.
        seeds: The number of runs, each with a seed of its own.
        metric: What the paper reports, `accuracy` or `error`, of the test set.
        epoch: Which epoch it is measured at, the `last` or the `best`.
        over: The statistic over the runs, such as `median` or `mean`.
        lr_grid: Step sizes, of which the one with the best accuracy on held-out samples is taken.
        validation: The share of the training samples that is held out for that.
        early_stopping: The epochs without a better accuracy after which the training ends.
        target: An accuracy; the paper reports the time to it.
        transfer: The schedule for a pretrained network, without the names of its classifier.
        ours: The settings above that the paper leaves open, or contradicts itself in; these are our choice.

    Example:
        >>> import freewheel as fw
        >>> recipe = fw.recipes.find("fdg", model="resnet-56", stages=3)
        >>> recipe.name, recipe.epochs, str(recipe.schedule)
        ('fdg-warmup', 300, '3 epochs of warm-up at 0.01, then times 0.1 at epochs 150, 225, 275')
    """

    name: str
    paper: str
    source: str
    methods: tuple[str, ...]
    data: tuple[str, ...]
    models: tuple[str, ...]
    stages: int | None = None
    least_stages: int | None = None
    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float
    momentum: float | None = None
    weight_decay: float = 0.0
    schedule: LRSchedule = field(default_factory=LRSchedule)
    augment: bool = False
    seeds: int = 1
    metric: Literal["accuracy", "error"] = "accuracy"
    epoch: Literal["last", "best"] = "last"
    over: Literal["median", "mean", "least", "most"] = "mean"
    lr_grid: tuple[float, ...] = ()
    validation: float = 0.0
    early_stopping: int = 0
    target: float | None = None
    transfer: Transfer | None = None
    ours: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "seeds"):
            whole_number(name, getattr(self, name), least=1)
        whole_number("early_stopping", self.early_stopping, least=0)
        number("lr", self.lr, above=0)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("metric", self.metric, ("accuracy", "error"))
        one_of("epoch", self.epoch, ("last", "best"))
        one_of("over", self.over, OVER)

    def suits(self, *, model: str | None, stages: int | None) -> bool:
        """Whether the paper trains this network, in this number of stages, so."""
        many = self.least_stages is not None and stages is not None and stages >= self.least_stages
        return many or model in self.models

    def scaled(self, epochs: int) -> Recipe:
        """The same in another number of epochs, with milestones and warm-ups in proportion."""
        transfer, share = self.transfer, epochs / self.epochs
        if transfer is not None:
            warmup, ramp = (max(1, round(count * share)) for count in (transfer.warmup, transfer.ramp))
            transfer = replace(transfer, warmup=warmup, ramp=ramp)
        schedule = self.schedule.scaled(self.epochs, epochs)
        return replace(self, epochs=epochs, schedule=schedule, transfer=transfer)

    def optimizer_settings(self) -> dict[str, float]:
        """The settings of the optimizer, by torch's names."""
        momentum = {} if self.momentum is None else {"momentum": self.momentum}
        return {"lr": self.lr, **momentum, "weight_decay": self.weight_decay}

    def optimizer_factory(self) -> Callable[[Any], torch.optim.Optimizer]:
        """What `Trainer(optimizer=…)` takes; it can be pickled."""
        return partial(OPTIMIZERS[self.optimizer], **self.optimizer_settings())  # pyright: ignore[reportArgumentType]

    def trainer_options(self, batches: int | None = None) -> dict[str, Any]:
        """The optimizer and the scheduler, for `Trainer(…, **recipe.trainer_options())`.

        Args:
            batches: The batches of an epoch, for a schedule that changes with every batch.
        """
        return {
            "optimizer": self.optimizer_factory(),
            "scheduler": self.schedule.factory(self.epochs, batches),
            "scheduler_every": self.schedule.every,
        }

    def callbacks(self) -> list[Callback]:
        """What `fit(callbacks=…)` takes: early stopping, if the recipe has it."""
        return [EarlyStopping(monitor="accuracy", patience=self.early_stopping)] if self.early_stopping else []

    def result(self, history: History) -> float | None:
        """What the paper reports of a run that was scored after every epoch: accuracy or error, last or best."""
        scores = [score for score in history.metrics if score is not None]
        if not scores:
            return None
        score = max(scores) if self.epoch == "best" else scores[-1]
        return 1 - score if self.metric == "error" else score

    def statistics(self, histories: Iterable[History]) -> Statistics:
        """The results of several runs, of which `statistics.over(recipe.over)` is what the paper prints."""
        return Statistics.of(found for found in map(self.result, histories) if found is not None)


def by_name(recipes: Iterable[Sequence[Recipe]]) -> dict[str, Recipe]:
    """The recipes of several papers in one table."""
    return {recipe.name: recipe for each in recipes for recipe in each}
