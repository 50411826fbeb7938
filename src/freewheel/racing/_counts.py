"""What workers count: updates of each layer, and how stale their gradients were."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from typing import NamedTuple

from torch import Tensor


class Versions:
    """How many updates each layer has seen. A worker writes its own row alone, so that nothing is lost without a lock.

    Args:
        rows: A row for each worker with a number for each layer, one after the other, in memory that all see.
        layers: How many layers there are.
        workers: Those who share the weights.
    """

    def __init__(self, rows: MutableSequence[int], layers: int, workers: range) -> None:
        self._rows, self._layers, self._workers = rows, layers, workers

    def of(self, layer: int) -> int:
        """The updates that a layer has seen."""
        return sum(self._rows[worker * self._layers + layer] for worker in self._workers)

    def add(self, worker: int, layer: int) -> None:
        """One more, by this worker."""
        self._rows[worker * self._layers + layer] += 1


class LayerCount(NamedTuple):
    """Updates of a layer, and the updates of others that came between its forwards and these, all together."""

    started: int
    finished: int
    gaps: int


class Tally:
    """What one worker has counted since the last cut."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.clear()

    def clear(self) -> None:
        """Begins anew."""
        self.started, self.finished, self.gaps = ([0] * self._layers for _ in range(3))
        self.losses: list[tuple[int, Tensor, int]] = []  # batch, loss, size
        self.busy = 0.0

    def layers(self) -> list[LayerCount]:
        """The counts by layer."""
        return [LayerCount(*counts) for counts in zip(self.started, self.finished, self.gaps)]


def together(counts: Iterable[Sequence[LayerCount]]) -> list[LayerCount]:
    """The sum over workers.

    Example:
        >>> together([[LayerCount(1, 1, 2)], [LayerCount(3, 2, 0)]])
        [LayerCount(started=4, finished=3, gaps=2)]
    """
    return [LayerCount(*(sum(column) for column in zip(*each))) for each in zip(*counts)]
