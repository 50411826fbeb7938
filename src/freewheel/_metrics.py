"""Metrics of a network's output: means over batches, and those that are computed over a whole epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from freewheel._numbers import kept, read


@runtime_checkable
class EpochMetric(Protocol):
    """A metric over a whole epoch, such as those of torchmetrics."""

    def update(self, output: Any, target: Any) -> object:
        """Take in a batch."""
        ...

    def compute(self) -> Any:
        """Return the metric over all batches: a number, or a dict of them."""
        ...

    def reset(self) -> object:
        """Forget all batches."""
        ...


Metric = Callable[[Any, Any], Any] | EpochMetric


def accuracy(output: Any, target: Any) -> float | None:
    """Return the share of correct classes, or None if output and target are not class scores and class indices.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    share = _share_correct(output, target)
    return None if share is None else share.item()


def _share_correct(output: Any, target: Any) -> Tensor | None:
    """The accuracy, as a tensor that nothing waits for."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if target.is_floating_point() or target.dtype == torch.bool or output.dim() != target.dim() + 1:
        return None
    if (output.shape[0], *output.shape[2:]) != target.shape:  # classes are not in dimension 1, as in cross_entropy
        return None
    return (output.argmax(1) == target).float().mean()


class Meter:
    """Measures metrics over the batches of an evaluation.

    Example:
        >>> meter = Meter({"accuracy": accuracy, "none": lambda output, target: None})
        >>> meter.update(torch.eye(2), torch.tensor([0, 1]), 2)
        >>> meter.update(torch.eye(2)[:1], torch.tensor([1]), 1)
        >>> meter.compute()
        {'accuracy': 0.66..., 'none': None}
    """

    def __init__(self, metric: Metric | Mapping[str, Metric]) -> None:
        alone = "accuracy" if metric is accuracy else "metric"
        metrics = dict(metric) if isinstance(metric, Mapping) else {alone: metric}
        self._metrics = {name: _share_correct if each is accuracy else each for name, each in metrics.items()}
        self._whole = {name: each for name, each in self._metrics.items() if isinstance(each, EpochMetric)}
        self._scores: dict[str, list[tuple[Tensor | float, int]]] = {}  # with the number of samples
        for each in self._whole.values():
            each.reset()

    def update(self, output: Any, target: Any, size: int) -> None:
        """Take in a batch of this many samples."""
        for name, metric in self._metrics.items():
            if name in self._whole:
                self._whole[name].update(output, target)
                continue
            score = metric(output, target)  # pyright: ignore[reportCallIssue]
            if score is not None:
                self._scores.setdefault(name, []).append((kept(score), size))

    def compute(self) -> dict[str, float | None]:
        """Return each metric; None where it has no value."""
        out: dict[str, float | None] = {}
        for name in self._metrics:
            if name in self._whole:
                out |= _numbers(name, self._whole[name].compute())
                self._whole[name].reset()
            else:
                scores, sizes = zip(*self._scores.get(name, [(0.0, 0)]))
                total = sum(score * size for score, size in zip(read(scores), sizes))
                out[name] = total / sum(sizes) if sum(sizes) else None
        return out


def _numbers(name: str, computed: Any) -> dict[str, float | None]:
    """The number that a metric has computed, or its numbers by their own names."""
    found = computed if isinstance(computed, Mapping) else {name: computed}
    for key, value in found.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise TypeError(f"metric {key!r} computed a tensor of shape {tuple(value.shape)}: it must compute a number")
    return {str(key): None if value is None else float(value) for key, value in found.items()}
