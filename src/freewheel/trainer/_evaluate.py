"""Scoring a network on a loader, without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from freewheel._config import RunConfig
from freewheel._metrics import Meter
from freewheel._numbers import kept
from freewheel.runtime import Batch, Feed, Prefetcher, Reader
from freewheel.stage import homes, loss_of, to_device, without_loss
from freewheel.trainer._history import Score, mean_loss


def evaluate(
    modules: Sequence[nn.Module],
    loader: Iterable[Any],
    config: RunConfig,
    calling: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Score:
    """Run the stages one after the other, in eval mode and without gradients; a GPU is waited for at the end.

    Metrics are called in a context of `calling`.
    """
    losses: list[tuple[Any, int]] = []
    meter = Meter(config.metric)
    device = homes(modules)[-1]
    for batch, out in _outputs(modules, loader, config, Reader.batch):
        target = to_device(batch.target, device)
        with torch.no_grad(), config.casting(device):
            loss = loss_of(modules[-1], config.loss)(out, target)
        with torch.no_grad(), calling():
            meter.update(out, target, batch.size)
        losses.append((kept(loss), batch.size))
    mean, samples = mean_loss(losses)
    with calling():
        metrics = meter.compute()
    return Score(loss=mean, metric=next(iter(metrics.values()), None), samples=samples, metrics=metrics)


def predict(modules: Sequence[nn.Module], loader: Iterable[Any], config: RunConfig) -> list[Any]:
    """Return the output of each batch, on the CPU."""
    outputs = _outputs(modules, loader, config, Reader.input)
    return [to_device(out, torch.device("cpu")) for _, out in outputs]


def _outputs(
    modules: Sequence[nn.Module], loader: Iterable[Any], config: RunConfig, read: Callable[[Reader, int, Any], Batch]
) -> Iterator[tuple[Batch, Any]]:
    devices = homes(modules)
    reader = Reader.of(config, pins="cuda" in (devices[0].type, devices[-1].type))
    source = Prefetcher(partial(read, reader), devices[0], devices[-1])
    feed = Feed(loader, 1, read=source.read, ahead=source.ahead)
    while (batch := feed.pull()) is not None:
        out = batch.x
        with torch.no_grad(), eval_mode(map(without_loss, modules)):
            for module, device in zip(modules, devices):
                with config.casting(device):
                    out = module(to_device(out, device))
        yield batch, out


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
