"""A copy of the weights, as all workers see it: how often each layer has changed, and what other devices send to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from freewheel.racing._memory import Layer


class UpdateCounts:
    """How often each layer of a copy has changed. Each worker writes only its own row, so no count is lost.

    `rows` has a row per worker with a number per layer, flattened, in memory that all workers see; `workers` are those
    that change the copy.
    """

    def __init__(self, rows: MutableSequence[int], layers: int, workers: range) -> None:
        self._rows, self._layers, self._workers = rows, layers, workers

    def of(self, layer: int) -> int:
        """Changes of a layer so far."""
        return sum(self._rows[worker * self._layers + layer] for worker in self._workers)

    def add(self, worker: int, layer: int) -> None:
        """Count one change of a layer by this worker."""
        self._rows[worker * self._layers + layer] += 1


class LayerLocks:
    """A lock per layer. Unless `locked`, only a layer's first update takes it: optimizer state is created there."""

    def __init__(self, layers: int, *, locked: bool) -> None:
        self._locks = [threading.Lock() for _ in range(layers)]
        self._initialized = [False] * layers
        self._locked = locked

    @contextmanager
    def updating(self, layer: int) -> Iterator[None]:
        """Context in which a layer is updated."""
        if self._initialized[layer] and not self._locked:
            yield
            return
        with self._locks[layer]:
            yield
        self._initialized[layer] = True

    def receiving(self, layer: int) -> AbstractContextManager[object]:
        """Context in which a layer is replaced by that of another device."""
        return self._locks[layer] if self._locked else nullcontext()


class WeightCopy:
    """A copy of the weights; `modules` hold it."""

    def __init__(
        self,
        index: int,
        modules: Sequence[nn.Module],
        layers: Sequence[Layer],
        changes: UpdateCounts,
        locks: LayerLocks | None = None,
    ) -> None:
        self.index, self.changes = index, changes
        self.locks = LayerLocks(len(layers), locked=False) if locks is None else locks
        self._weights = [layer.weights(modules) for layer in layers]

    def receive(self, layer: Layer, weights: Sequence[Tensor], worker: int) -> None:
        """Replace a layer by that of another device, sent by this worker."""
        with torch.no_grad(), self.locks.receiving(layer.index):
            for own, sent in zip(self._weights[layer.index], weights):
                own.copy_(sent)
        self.changes.add(worker, layer.index)
