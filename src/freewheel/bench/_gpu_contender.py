"""A contender of the GPU benchmark: what it trains, how long a batch takes, and what memory it needs."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from freewheel import models
from freewheel.bench._gpu_cases import Case

Batches = Sequence[tuple[Tensor, Tensor]]
# Weights stay finite with the noisiest gradient; how large a step is has no influence on its time.
OPTIMIZER = partial(torch.optim.SGD, lr=1e-7, momentum=0.9, weight_decay=5e-4)
DISTINCT = 8  # batches, which are used again and again
CLASSES = 10
WARM_UP = 10  # batches


class Whole(nn.Module):
    """A network with a single traceable forward, so that it can be cut within its blocks."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """The class scores."""
        return self.net(x)


def build_network(case: Case, device: str) -> Whole:
    """The network of a case, always with the same weights."""
    torch.manual_seed(0)
    return Whole(models.build(case.net, in_shape=case.shape, num_classes=CLASSES)).to(device)


def make_batches(case: Case, device: str) -> list[tuple[Tensor, Tensor]]:
    """Random images and classes on the device, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(case.batch, *case.shape, generator=generator).to(device),
            torch.randint(CLASSES, (case.batch,), generator=generator).to(device),
        )
        for _ in range(DISTINCT)
    ]


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


class Memory(NamedTuple):
    """Bytes on a GPU: of tensors, and of what the allocator has taken from the device; None where they are unknown.

    A CUDA graph keeps what its temporary tensors have had, which counts as reserved alone.
    """

    allocated: int | None = None
    reserved: int | None = None


class Contender(ABC):
    """Trains a network, in turns of many batches."""

    @abstractmethod
    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each of `count` turns of `steps` batches.

        The first call warms up. Every CUDA graph that the second one replays is captured in it, so that the allocator
        has seen what the graph needs.
        """

    @abstractmethod
    def extra(self, before: Memory) -> Memory:
        """The peak of the last turns beyond weights, optimizer state and data.

        Args:
            before: What there was before it was made.
        """


class TorchContender(Contender):
    """A contender whose memory torch allocates."""

    @abstractmethod
    def persistent(self) -> Iterable[Tensor]:
        """Weights, buffers and optimizer state."""

    def extra(self, before: Memory) -> Memory:
        """The peak since the allocator's was reset."""
        if before.allocated is None or before.reserved is None:
            return before
        own = sum(tensor.nbytes for tensor in self.persistent() if tensor.is_cuda)
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Memory(allocated - before.allocated - own, reserved - before.reserved - own)


class Repeated(TorchContender):
    """A training step of plain PyTorch, repeated.

    Args:
        step: Trains on a batch.
        model, optimizer: What it trains.
        batches: The batches.
        device: Where they are.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor], None],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        device: str,
    ) -> None:
        self.step, self._model, self._optimizer, self._batches, self._device = step, model, optimizer, batches, device

    def turns(self, steps: int, count: int) -> list[float]:
        """The seconds a batch of each turn."""
        return [self._turn(steps) / steps for _ in range(count)]

    def _turn(self, steps: int) -> float:
        synchronize(self._device)
        started = time.perf_counter()
        for number in range(steps):
            self.step(*self._batches[number % len(self._batches)])
        synchronize(self._device)
        return time.perf_counter() - started

    def persistent(self) -> Iterable[Tensor]:
        """Weights, buffers and optimizer state."""
        return [*self._model.parameters(), *self._model.buffers(), *state_of(self._optimizer)]


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's state."""
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


class Built(NamedTuple):
    """A contender that is warm, and its peak beyond weights, optimizer state and data."""

    contender: Contender
    seconds: float  # of a batch, roughly: others may compile meanwhile
    extra: Memory


def build(make: Callable[[], Contender], device: str) -> Built:
    """Build a contender, warm it up, and measure its memory."""
    before = _memory(device)
    contender = make()
    contender.turns(WARM_UP, 1)
    _memory(device)
    [seconds] = contender.turns(WARM_UP, 1)
    return Built(contender, seconds, contender.extra(before))


def _memory(device: str) -> Memory:
    """The memory in use, once nothing runs and no garbage is left; peaks are counted from here."""
    if device == "cpu":
        return Memory()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return Memory(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
