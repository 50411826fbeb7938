"""The baseline: the same network, trained by a plain PyTorch loop on one core."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._cores import intra_op_threads
from freewheel.cli._job import Job
from freewheel.data import Loader

WARM_UP = 3
LEAST_BATCHES = 10
SECONDS = 1.0

Batch = tuple[Tensor, Tensor]


class OneCore:
    """The median time of a batch in plain training and evaluation, over all calls of `time`.

    Batches, optimizer, clipping and autocast are those of the run, and fetching and augmenting a batch count as well.
    Everything runs in this thread, on one intra-op thread, on a copy of the untrained network.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._loaders = job, (job.data.train.to("cpu"), job.data.test.to("cpu"))
        self.training: list[float] = []
        self.scoring: list[float] = []

    @property
    def epoch_seconds(self) -> float:
        """The time of an epoch: training on all samples, then evaluation on the test samples."""
        data = self._job.data
        batches = data.train.samples / _size(data.train), data.test.samples / _size(data.test)
        return batches[0] * median(self.training) + batches[1] * median(self.scoring)

    @property
    def images_per_second(self) -> float:
        """Training samples over the time of an epoch."""
        return self._job.data.train.samples / self.epoch_seconds

    def as_dict(self) -> dict[str, Any]:
        """The result, as plain data."""
        return {
            "images_per_second": self.images_per_second,
            "epoch_seconds": self.epoch_seconds,
            "batches_timed": len(self.training),
        }

    def time(self) -> None:
        """Train and evaluate a fresh copy for about `SECONDS`, and for ten batches at least."""
        settings, (train_loader, test_loader) = self._job.settings, self._loaders
        clip, bf16 = settings.options.clip, settings.options.bf16
        model = copy.deepcopy(self._job.untrained)
        optimizer = settings.optimizer_factory()(model.parameters())

        def casts() -> AbstractContextManager[object]:
            return torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()

        def train(batch: Batch) -> None:
            optimizer.zero_grad()
            with casts():
                loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()

        def score(batch: Batch) -> None:
            with torch.no_grad(), casts():
                out = model(batch[0])
                float(F.cross_entropy(out, batch[1]))
                (out.argmax(1) == batch[1]).float().mean().item()

        with intra_op_threads(1):
            model.train()
            self.training += time_batches(train, train_loader, seconds=SECONDS)
            model.eval()
            self.scoring += time_batches(score, test_loader, seconds=SECONDS / 4)


def time_batches(work: Callable[[Batch], None], loader: Loader, *, seconds: float) -> list[float]:
    """The time of each full batch, fetching included, after a warm-up."""
    times: list[float] = []
    batches = endless(loader)
    for _ in range(WARM_UP):
        work(next(batches))
    begun = perf_counter()
    while len(times) < LEAST_BATCHES or perf_counter() - begun < seconds:
        start = perf_counter()
        batch = next(batches)
        work(batch)
        if len(batch[1]) == _size(loader):  # the last batch of an epoch may be smaller
            times.append(perf_counter() - start)
    return times


def endless(loader: Loader) -> Iterator[Batch]:
    """The batches of epoch 0, 1, 2 and so on; the position of the loader itself does not change."""
    for epoch in count():
        yield from loader.epoch(epoch)


def _size(loader: Loader) -> int:
    return min(loader.batch_size, loader.samples)
