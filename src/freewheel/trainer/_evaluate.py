"""Scoring a network on a loader, without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from freewheel._config import RunConfig
from freewheel.runtime import Feed, Reader
from freewheel.stage import homes, to_device
from freewheel.trainer._history import Score


def evaluate(modules: Sequence[nn.Module], loader: Iterable[Any], config: RunConfig) -> Score:
    """Run the stages one after the other, in eval mode and without gradients."""
    feed = Feed(loader, 1, read=Reader.of(config).batch)
    total, samples = 0.0, 0
    scores: list[float] = []
    devices = homes(modules)
    with torch.no_grad(), eval_mode(modules):
        while (batch := feed.pull()) is not None:
            out, target = batch.x, to_device(batch.target, devices[-1])
            for module, device in zip(modules, devices):
                with casting(config, device):
                    out = module(to_device(out, device))
            with casting(config, devices[-1]):
                loss = config.loss(out, target)
            total += float(loss) * batch.size
            score = config.metric(out, target)
            if score is not None:
                scores.append(float(score) * batch.size)
            samples += batch.size
    return Score(loss=total / samples, metric=sum(scores) / samples if scores else None, samples=samples)


def casting(config: RunConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a stage and the loss compute: autocast, where it is asked for."""
    return torch.autocast(device.type, dtype=config.autocast) if config.autocast else nullcontext()


@contextmanager
def eval_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A context in which modules are in eval mode; afterwards every submodule has its mode back."""
    modes = [(submodule, submodule.training) for module in modules for submodule in module.modules()]
    for submodule, _ in modes:
        submodule.training = False
    try:
        yield
    finally:
        for submodule, training in modes:
            submodule.training = training
