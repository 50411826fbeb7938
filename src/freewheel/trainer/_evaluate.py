"""Scoring a network on a loader, without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.runtime import Feed
from freewheel.stage import Loss, homes, to_device
from freewheel.trainer._history import Score

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> float | None:
    """The share of right classes, or None where output and target are not class scores and class numbers.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if target.is_floating_point() or target.dtype == torch.bool or output.dim() != target.dim() + 1:
        return None
    if (output.shape[0], *output.shape[2:]) != target.shape:  # the classes are not where cross_entropy has them
        return None
    return (output.argmax(1) == target).float().mean().item()


def evaluate(
    modules: Sequence[nn.Module],
    loader: Iterable[Any],
    *,
    loss: Loss,
    metric: Metric,
    autocast: torch.dtype | None = None,
) -> Score:
    """Runs the stages one after the other, in eval mode and without gradients."""
    feed = Feed(loader, 1)
    total, samples = 0.0, 0
    scores: list[float] = []
    devices = homes(modules)
    with torch.no_grad(), eval_mode(modules):
        while (batch := feed.pull()) is not None:
            out, target = batch.x, to_device(batch.target, devices[-1])
            for module, device in zip(modules, devices):
                with torch.autocast(device.type, dtype=autocast) if autocast else nullcontext():
                    out = module(to_device(out, device))
            total += float(loss(out, target)) * batch.size
            score = metric(out, target)
            if score is not None:
                scores.append(float(score) * batch.size)
            samples += batch.size
    return Score(loss=total / samples, metric=sum(scores) / samples if scores else None, samples=samples)


@contextmanager
def eval_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the modules are in eval mode; afterwards each part of them is in the mode it was in."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
