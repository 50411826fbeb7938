"""The time of a forward and of a backward pass."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from freewheel import models
from freewheel.bench._gpu_contender import synchronize
from freewheel.reproduce._networks import DIGITS_NET, Net
from freewheel.reproduce.jobs._job import Context, Job


@dataclass(frozen=True, kw_only=True)
class Passes(Job):
    """The seconds of the two passes of plain PyTorch, without an update.

    Args:
        net: The network.
        classes: Its outputs.
        batch: Samples in a batch.
        batches: The batches over which the mean is taken.
    """

    timed: ClassVar[bool] = True
    net: Net
    classes: int = 100
    batch: int = 128
    batches: int = 100

    @property
    def title(self) -> str:
        """The network."""
        return f"passes of {self.net.title}, batches of {self.batch}"

    def quick(self) -> tuple[Passes, tuple[str, ...]]:
        """A small network and a few batches."""
        small = replace(self, net=DIGITS_NET, batch=32, batches=10)
        words = (f"{DIGITS_NET.title} for {self.net.title}", "10 batches of 32 for 100 of 128")
        return small, words

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The mean over the batches."""
        torch.manual_seed(seed)
        shape = (1, 8, 8) if self.net.small else (3, 32, 32)
        model = models.build(self.net.model, num_classes=self.classes, in_shape=shape).to(context.device)
        images = torch.randn(self.batch, *shape, device=context.device)
        labels = torch.randint(self.classes, (self.batch,), device=context.device)
        spent = [0.0, 0.0]
        for number in range(-3, self.batches):  # the first are a warm-up
            model.zero_grad()
            times = [self._now(context)]
            loss = F.cross_entropy(model(images), labels)
            times.append(self._now(context))
            loss.backward()
            times.append(self._now(context))
            if number >= 0:
                spent = [spent[0] + times[1] - times[0], spent[1] + times[2] - times[1]]
        return {"forward": spent[0] / self.batches, "backward": spent[1] / self.batches}

    @staticmethod
    def _now(context: Context) -> float:
        synchronize(context.device)
        return time.perf_counter()
