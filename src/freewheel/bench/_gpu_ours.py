"""Freewheel in the GPU benchmark: trained by `fit`, timed while the pipeline is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from freewheel.bench._gpu_cases import Case, Ours
from freewheel.bench._gpu_contender import OPTIMIZER, Batches, TorchContender, build_network, state_of
from freewheel.bench._network import Cut
from freewheel.split import split
from freewheel.trainer import Trainer

Cuts = dict[tuple[str, int], Cut]  # by what is balanced, and K
FILLS = 8  # times K batches: the pipeline is full, and its graphs are captured


def measure_cuts(case: Case, batches: Batches, device: str) -> Cuts:
    """Where to cut the network into stages of equal cost, for every K of the case."""
    return {
        (by, k): tuple(len(names) for names in split(build_network(case, device), k, example=x, by=by).report.names)
        for by, k in dict.fromkeys((balanced(ours), ours.k) for ours in case.ours if ours.k > 1)
        for x in [batches[0][0]]
    }


def balanced(ours: Ours) -> str:
    """What the stages of a method have in equal parts."""
    return "forward" if ours.forward else "time"


class Training(TorchContender):
    """A trainer, which captures its graphs anew in every `fit`."""

    def __init__(self, case: Case, ours: Ours, cuts: Cuts, batches: Batches, device: str) -> None:
        model = build_network(case, device)
        stages = [model]
        if ours.k > 1:
            stages = split(model, balance=cuts[balanced(ours), ours.k], example=batches[0][0])
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
        self._batches, self._fill = batches, FILLS * ours.k

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each turn, an epoch.

        On threads an epoch is recorded when its last batch has been launched, before the GPU has finished it. So the
        turns are epochs that follow one as long, whose last batches count for them as theirs count for the next.
        """
        lengths = [self._fill, *[steps] * (count + 1), self._fill]
        history = self._trainer.fit(Passes(self._batches, lengths), len(lengths), progress=False)
        return [epoch.seconds / steps for epoch in history.epochs[2:-1]]

    def persistent(self) -> Iterable[Tensor]:
        """Weights, buffers and optimizer state."""
        for stage, optimizer in zip(self._trainer.stages, self._trainer.optimizers):
            yield from stage.parameters()
            yield from stage.buffers()
            yield from () if optimizer is None else state_of(optimizer)


class Passes:
    """A loader whose passes have these lengths; the batches repeat.

    Example:
        >>> loader = Passes(["a", "b"], [1, 3])
        >>> list(loader), list(loader)
        (['a'], ['a', 'b', 'a'])
    """

    def __init__(self, batches: Sequence[Any], lengths: Iterable[int]) -> None:
        self._batches, self._lengths = batches, iter(lengths)

    def __iter__(self) -> Iterator[Any]:
        count = next(self._lengths, 0)
        repeated = (batch for _ in range(-(-count // len(self._batches))) for batch in self._batches)
        return islice(repeated, count)
