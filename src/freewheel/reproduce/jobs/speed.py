"""The speed of a training while its pipeline is full."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel import models
from freewheel._cores import cores
from freewheel.bench._contenders import Laps
from freewheel.bench._gpu_contender import OPTIMIZER, Whole, synchronize
from freewheel.methods import Method
from freewheel.reproduce._networks import DIGITS_NET, Net
from freewheel.reproduce.jobs._job import Context, Job, in_words
from freewheel.split import split
from freewheel.trainer import Trainer

EDGE = 12  # batches before and after the timed ones for each stage: filling, capturing graphs, draining


@dataclass(frozen=True, kw_only=True)
class Speed(Job):
    """Images per second of a method on random images.

    A worker is a core, or a stream of one GPU.

    Args:
        net: The network.
        method: The method.
        k: The number of stages.
        batch: Samples in a batch.
        shape: Channels, height and width of an image.
        classes: The outputs of the network.
        batches: The batches that are timed.
        replicas: Copies of the network that learn together.
        by: What stages have in equal parts: the measured `time` of a step, or that of a `forward` gradient.
    """

    timed: ClassVar[bool] = True
    net: Net
    method: Method
    k: int = 1
    batch: int
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    batches: int = 100
    replicas: int = 1
    by: str = "time"

    @property
    def title(self) -> str:
        """Network, batch, method and workers."""
        return f"{self.net.title}, batches of {self.batch}, {in_words(self.method)}, {self.workers}"

    @property
    def workers(self) -> str:
        """Stages and replicas."""
        return f"K={self.k}" + (f", {self.replicas} replicas" if self.replicas > 1 else "")

    def quick(self) -> tuple[Speed, tuple[str, ...]]:
        """A small network, small images and a few batches."""
        batch, batches = min(self.batch, 16), 12
        small = replace(self, net=DIGITS_NET, shape=(1, 16, 16), batch=batch, batches=batches, classes=10)
        words = (
            f"{DIGITS_NET.title} on 16x16 images for {self.net.title} on {self.shape[1]}x{self.shape[2]}",
            f"{batches} batches for {self.batches}",
        )
        return small, words + ((f"batches of {batch} for {self.batch}",) if batch != self.batch else ())

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """Train three epochs, of which the middle one counts."""
        if self.batch < self.replicas:
            raise ValueError(f"a batch of {self.batch} cannot be divided among {self.replicas} replicas")
        torch.manual_seed(0)
        example, target = self._batch(seed)
        example, target = example.to(context.device), target.to(context.device)
        model = Whole(self._model()).to(context.device)
        on_gpu, planned = context.device != "cpu", self.method.planned
        trainer = Trainer(
            split(model, self.k, example=example, by=self.by, threads=1),
            method=self.method,
            loss=F.cross_entropy,
            optimizer=OPTIMIZER,
            runtime="auto" if on_gpu and planned and self.replicas == 1 else "threads",
            compile=context.compile and planned,
            replicas=self.replicas,
            threads=1,
            check=False,
            seed=seed,
        )
        batches = [(example, target)] * self.batches
        laps = Laps(batches, min(len(batches), EDGE * self.k) if on_gpu else max(4, len(batches) // 4))
        timed = trainer.fit(laps, 3, progress=False).epochs[1]
        synchronize(context.device)
        busy = {f"worker {i + 1}": 100 * share for i, share in enumerate(timed.busy)}
        return {
            "images/s": timed.images_per_second,
            **busy,
            "runtime": str(trainer.runtime.name),
            "cores": cores(),
        }

    def _model(self) -> nn.Sequential:
        return models.build(self.net.model, num_classes=self.classes, in_shape=self.shape, **dict(self.net.options))

    def _batch(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(self.batch, *self.shape, generator=generator)
        return images, torch.randint(self.classes, (self.batch,), generator=generator)
