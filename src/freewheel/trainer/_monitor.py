"""Callbacks that watch a number from epoch to epoch: early stopping, a target, and keeping the best model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from freewheel._errors import number, one_of, whole_number
from freewheel.trainer._callbacks import EpochEnd
from freewheel.trainer._history import Epoch

Mode = Literal["min", "max"]


@dataclass(kw_only=True)
class Monitor:
    """A number of each epoch, and when it is better.

    Args:
        monitor: `loss`, the validation loss (the training loss without `validate`), or the name of a metric.
        mode: Whether the `min` or the `max` is best; by default the min of a loss and the max of a metric.
    """

    monitor: str = "loss"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        self.mode = self.mode or ("min" if self.monitor == "loss" else "max")
        one_of("mode", self.mode, ("min", "max"))

    def value(self, epoch: Epoch) -> float:
        """The number of an epoch."""
        score = epoch.validation
        if self.monitor == "loss":
            return epoch.loss if score is None else score.loss
        found = None if score is None else score.metrics.get(self.monitor)
        if found is None:
            known = "none: give fit validate=LOADER" if score is None else ", ".join(score.metrics)
            raise ValueError(f"monitor={self.monitor!r}: epoch {epoch.epoch} has no such metric (it has {known})")
        return found

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether a number is better than another, by more than a margin."""
        return value < than - by if self.mode == "min" else value > than + by


@dataclass(kw_only=True)
class EarlyStopping(Monitor):
    """End the training once a number has not become better for some epochs.

    Args:
        monitor: `loss`, the validation loss (the training loss without `validate`), or the name of a metric.
        patience: The number of epochs without a better one.
        margin: By how much more it must be better.
        mode: Whether the `min` or the `max` is best; by default the min of a loss and the max of a metric.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.0))
        >>> loader = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
        >>> history = trainer.fit(loader, epochs=10, validate=loader, callbacks=[fw.EarlyStopping(patience=2)])
        >>> len(history.epochs), history.stopped
        (3, True)
    """

    patience: int = 3
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("patience", self.patience, least=1)
        number("margin", self.margin, least=0)

    def __call__(self, end: EpochEnd) -> bool:
        """Whether the last `patience` epochs were no better than the best before."""
        values = [self.value(epoch) for epoch in end.history.epochs]
        best = 0
        for i, value in enumerate(values):
            best = i if self.better(value, values[best], self.margin) else best
        return len(values) - 1 - best >= self.patience


@dataclass(kw_only=True)
class StopAt(Monitor):
    """End the training once a number has reached a target; `history.time_to` says when that was.

    Args:
        target: The target, such as an accuracy of 0.9.
        monitor: `loss`, the validation loss (the training loss without `validate`), or the name of a metric.
        mode: Whether the `min` or the `max` is best; by default the min of a loss and the max of a metric.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> loader = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
        >>> history = trainer.fit(loader, epochs=100, validate=loader, callbacks=[fw.StopAt(target=0.9)])
        >>> history.time_to(0.9).epochs == len(history.epochs) < 100, history.stopped
        (True, True)
    """

    target: float
    monitor: str = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        number("target", self.target)

    def __call__(self, end: EpochEnd) -> bool:
        """Whether the epoch has reached the target."""
        value = self.value(end.record)
        return value == self.target or self.better(value, self.target)


@dataclass(kw_only=True)
class KeepBest(Monitor):
    """Keep the weights of the best epoch, in memory or in a file.

    Args:
        monitor: `loss`, the validation loss (the training loss without `validate`), or the name of a metric.
        path: A file to which `torch.save` writes the weights; in memory by default.
        mode: Whether the `min` or the `max` is best; by default the min of a loss and the max of a metric.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> loader = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
        >>> best = fw.KeepBest(monitor="loss")
        >>> _ = trainer.fit(loader, epochs=3, validate=loader, callbacks=[best])
        >>> best.epoch
        2
        >>> trainer.model().load_state_dict(best.weights())
        <All keys matched successfully>
    """

    path: str | Path | None = None
    epoch: int | None = field(default=None, init=False)  # the best
    best: float | None = field(default=None, init=False)  # its number
    _weights: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def __call__(self, end: EpochEnd) -> None:
        """Keep the weights, if they are the best so far in this fit."""
        value = self.value(end.record)
        if end.record.epoch and self.best is not None and not self.better(value, self.best):
            return
        self.epoch, self.best = end.record.epoch, value
        weights = end.model().state_dict()
        if self.path is None:
            self._weights = {name: w.clone() if isinstance(w, torch.Tensor) else w for name, w in weights.items()}
        else:
            torch.save(weights, self.path)

    def weights(self) -> dict[str, Any]:
        """The `state_dict` of the best epoch."""
        if self.epoch is None:
            raise RuntimeError(
                "KeepBest.weights before the end of an epoch: give it to fit as a callback, and let the fit come to "
                "the end of an epoch"
            )
        return torch.load(self.path) if self.path is not None else self._weights or {}
