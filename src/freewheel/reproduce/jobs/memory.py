"""The peak of a training's memory beyond weights, optimizer and batch, as `freewheel bench memory` counts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from freewheel import models
from freewheel._cores import intra_op_threads
from freewheel.bench._memory_accountant import peak_extra
from freewheel.bench._memory_contenders import SGD, make_contender
from freewheel.bench._memory_nets import Net as Layers
from freewheel.methods import Method
from freewheel.models import classifier
from freewheel.reproduce._networks import DIGITS_NET, Net, on
from freewheel.reproduce.jobs._job import Context, Job, in_words, with_scale
from freewheel.trainer import Trainer

MB = 1e6
MOST_LAYERS = 8  # of a quick measurement
MOST_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class LayerMemory(Job):
    """The memory of a contender of `freewheel bench memory` on equal layers.

    Args:
        layers: The network of the benchmark.
        contender: Its name there.
    """

    seeded: ClassVar[bool] = False

    layers: Layers
    contender: str

    @property
    def title(self) -> str:
        """Layers and contender."""
        net = self.layers
        size = f"T={net.length}" if net.kind == "rnn" else f"{net.depth} layers"
        return f"memory of {net.kind} of {net.width}, {size}, {self.contender}"

    def quick(self) -> tuple[LayerMemory, tuple[str, ...]]:
        """Fewer layers or steps."""
        net = self.layers
        small = replace(net, depth=min(net.depth, MOST_LAYERS), length=min(net.length, MOST_STEPS))
        words = f"at most {MOST_LAYERS} layers and {MOST_STEPS} time steps"
        return replace(self, layers=small), (words,) if small != net else ()

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The peak in MB."""
        net, device = self.layers, context.device
        train, steps = make_contender(self.contender, net, device)
        with intra_op_threads(1):
            train([net.data(2, device)] * 2)  # loads libraries
            return _peak(partial(train, [net.data(net.batch, device)] * steps), device)


@dataclass(frozen=True, kw_only=True)
class NetMemory(Job):
    """The memory of a method on a network.

    Args:
        net: The network.
        method: The method.
        k: The number of stages.
        few: Whether forward gradients train the classifier and the biases alone.
        batch: Samples in a batch.
        side: Rows and columns of an image.
    """

    seeded: ClassVar[bool] = False

    net: Net
    method: Method
    k: int = 1
    few: bool = False
    batch: int = 64
    side: int = 224

    @property
    def title(self) -> str:
        """Network and method."""
        few = ", few layers" * self.few
        return (
            f"memory of {self.net.title}, {self.batch} images of {self.side}x{self.side}, {in_words(self.method)}{few}"
        )

    def quick(self) -> tuple[NetMemory, tuple[str, ...]]:
        """A small network on small images."""
        small = replace(self, net=DIGITS_NET, batch=16, side=8)
        return small, (f"{DIGITS_NET.title}, batches of 16 and 8x8 images for {self.net.title}, 64 and 224x224",)

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The peak in MB."""
        torch.manual_seed(0)
        shape = (1 if self.net.small else 3, self.side, self.side)
        model = models.build(self.net.model, in_shape=shape)
        method = self.method
        if self.few:
            scale = {classifier(model): 1.0, "*.bias": 0.15, "*": 0.0}
            method = with_scale(method, scale)
        trainer = Trainer(
            self.net.cut(model, None, self.k, context.device),
            method=method,
            loss=F.cross_entropy,
            optimizer=SGD,
            runtime="simulate",
            check=False,
            threads=1,
        )
        batch = on((torch.randn(self.batch, *shape), torch.zeros(self.batch, dtype=torch.long)), context.device)
        train = partial(trainer.fit, progress=False)
        train([batch])  # loads libraries
        return _peak(partial(train, [batch] * (self.k + 2)), context.device)


def _peak(run: Callable[[], object], device: str) -> dict[str, Any]:
    """The peak of a run in MB, by a profiler that logs nothing."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return {"MB": peak_extra(run, device) / MB}
