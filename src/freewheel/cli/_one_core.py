"""The yardstick: the same network, trained by a plain PyTorch loop on one core."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel.cli._job import Job
from freewheel.data import TensorLoader
from freewheel.runtime import intra_op_threads

WARM_UP = 3
LEAST_BATCHES = 10
SECONDS = 1.0


class OneCore:
    """Times batches of plain training, a short while at each call; the median over all calls counts.

    Batches, optimizer, clipping and autocast are those of the run, and so is what one batch costs to fetch and
    augment. Everything happens in this thread, on one intra-op thread, to a copy of the untrained network.
    """

    def __init__(self, job: Job, *, seconds: float = SECONDS) -> None:
        self._job, self._seconds = job, seconds
        self._size = min(job.data.train.batch_size, len(job.data.train.images))
        self.times: list[float] = []

    @property
    def images_per_second(self) -> float:
        """Images in a batch over the median time of one."""
        return self._size / median(self.times)

    def measure(self) -> None:
        """Trains a fresh copy for about as many batches as fit into the time, ten at the least."""
        model = copy.deepcopy(self._job.untrained).train()
        optimizer = self._job.settings.optimizer_factory()(model.parameters())
        batches = endless(self._job.data.train)
        with intra_op_threads(1):
            for _ in range(WARM_UP):
                self._step(model, optimizer, next(batches))
            begun, seen = perf_counter(), 0
            while seen < LEAST_BATCHES or perf_counter() - begun < self._seconds:
                start = perf_counter()
                batch = next(batches)
                self._step(model, optimizer, batch)
                if len(batch[1]) == self._size:  # the last batch of an epoch may be a small one
                    self.times.append(perf_counter() - start)
                    seen += 1

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
        settings = self._job.settings
        x, target = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16) if settings.bf16 else nullcontext():
            loss = F.cross_entropy(model(x), target)
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()


def endless(loader: TensorLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of epoch 0, 1, 2 and so on; what the loader itself gives next stays the same."""
    for epoch in count():
        yield from loader.epoch(epoch)
