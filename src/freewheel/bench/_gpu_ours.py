"""Freewheel in the GPU benchmark: trained by `fit`, timed while the pipeline is full."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel.bench._gpu_cases import Case, Ours
from freewheel.bench._gpu_contender import OPTIMIZER, Batches, TorchContender, build_network, state_of
from freewheel.bench._network import Cut
from freewheel.split import split
from freewheel.trainer import Trainer

Cuts = dict[tuple[str, int, bool], Cut]


def measure_cuts(case: Case, batches: Batches, device: str) -> Cuts:
    """Where to cut the network into stages of equal cost, for each way to run it in several stages."""
    kinds = dict.fromkeys(kind_of(ours) for ours in case.ours if ours.k > 1)
    return {kind: _measured(case, batches, device, *kind) for kind in kinds}


def kind_of(ours: Ours) -> tuple[str, int, bool]:
    """What the stages of a method have in equal parts, their number, and whether they are compiled."""
    return "forward" if ours.forward else "time", ours.k, ours.compile


def _measured(case: Case, batches: Batches, device: str, by: str, k: int, compiled: bool) -> Cut:
    model, example = build_network(case, device), batches[0][0]
    if compiled:  # as the trainer stores it
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        example = example.to(memory_format=torch.channels_last)
    return split(model, k, example=example, by=by).report.balance


class Training(TorchContender):
    """A trainer, which captures its graphs anew in every `fit`."""

    def __init__(self, case: Case, ours: Ours, cuts: Cuts, batches: Batches, device: str) -> None:
        model = build_network(case, device)
        stages = [model]
        if ours.k > 1:
            stages = split(model, balance=cuts[kind_of(ours)], example=batches[0][0])
        self._trainer = Trainer(
            stages,
            method=ours.method,
            loss=F.cross_entropy,
            optimizer=OPTIMIZER,
            runtime=ours.runtime,
            compile=ours.compile,
            threads=1,
            check=False,
        )
        self._batches = batches

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each turn, an epoch.

        The first two epochs do not count, in which the pipeline fills and its graphs are captured, nor does the last
        one, after which it drains. On threads an epoch is recorded when its last batch has been launched, before the
        GPU has finished it: its last batches count for the next one, and those of the one before for it.
        """
        loader = list(islice(cycle(self._batches), steps))
        history = self._trainer.fit(loader, count + 3, progress=False)
        return [epoch.seconds / steps for epoch in history.epochs[2:-1]]

    def persistent(self) -> Iterable[Tensor]:
        """Weights, buffers and optimizer state."""
        for stage, optimizer in zip(self._trainer.stages, self._trainer.optimizers):
            yield from stage.parameters()
            yield from stage.buffers()
            yield from () if optimizer is None else state_of(optimizer)
