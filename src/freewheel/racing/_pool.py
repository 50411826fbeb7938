"""A pool of workers and the caller who leads it: dealing batches, barriers, cuts.

::

    caller    deal 0 → deal 1 → …  [epoch ends: drain, average, cut, evaluate]  …  → deal over → finish
    workers     take 0 …  done 0     take 1 …

All batches of an epoch are done before the next epoch begins, so a cut is the network after a known number of batches.
The first error closes the interleaving, which stops all other workers at their next step.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.racing._interleaving import Interleaving, Recorded
from freewheel.racing._memory import StepSizeSchedule, average, layers_of
from freewheel.racing._times import Tally
from freewheel.racing._worker import Report, total
from freewheel.runtime import Batch, Cut, Run, Snapshot

PARTITION_DRAWS = 1  # tells these draws from others of the same seed


class WorkerGroups(NamedTuple):
    """Groups of workers, each group with a copy of the weights, and the layers that their updates change."""

    groups: int = 1
    workers: int = 1  # per group
    average_every: int = 0  # updates of each group between two averages; 0 if there is nothing to average
    partitions: int = 1
    order: str = "turn"

    def names(self) -> list[str]:
        """The workers' names, group by group."""
        if self.groups == 1:
            return [f"worker {i}" for i in range(self.workers)]
        return [f"worker {i} of group {g}" for g in range(self.groups) for i in range(self.workers)]

    def members(self, group: int) -> range:
        """The indices of a group's workers."""
        return range(group * self.workers, (group + 1) * self.workers)

    def barrier_after(self, batch: Batch) -> bool:
        """Whether all batches up to this one must be done, and the copies averaged, before the next one is dealt."""
        every = self.groups * self.average_every
        return batch.cut or (every > 0 and (batch.number + 1) % every == 0)

    def check(self, layers: int) -> None:
        """Refuse more partitions than layers."""
        if self.partitions > layers:
            raise ValueError(
                f"partitions={self.partitions}: the network has {layers} layers with weights; give {layers} or less"
            )

    def partition(self, batch: int, layers: int, seed: int) -> range:
        """The layers that a batch updates; `batch` counts from the first batch of all runs.

        Example:
            >>> [WorkerGroups(groups=2, partitions=2).partition(batch, 5, seed=0) for batch in range(4)]
            [range(0, 3), range(0, 3), range(3, 5), range(3, 5)]
        """
        size, larger = divmod(layers, self.partitions)
        ends = [size * (i + 1) + min(i + 1, larger) for i in range(self.partitions)]
        partitions = [range(start, end) for start, end in zip([0, *ends], ends)]
        if self.order == "random":
            return random.Random(seed_of(seed, PARTITION_DRAWS, batch)).choice(partitions)
        return partitions[batch // self.groups % self.partitions]


class Pool(ABC):
    """The workers of a run, as the caller sees them. The run has begun: its stages are ready for batches."""

    def __init__(self, groups: WorkerGroups, run: Run, interleaving: Interleaving) -> None:
        self.run, self.stages, self.interleaving, self.groups = run, run.stages, interleaving, groups
        self.modules = [stage.module for stage in run.stages]
        self.layers = layers_of(self.modules)
        groups.check(len(self.layers))
        self._schedules = [StepSizeSchedule(stage) for stage in run.stages]
        self._done = 0  # batches
        self._epochs = 0  # that have ended

    @abstractmethod
    def running(self) -> AbstractContextManager[object]:
        """Context in which the workers run; all have ended when it is left."""

    @abstractmethod
    def deal(self, batch: Batch | None) -> None:
        """Put a batch into a queue, or None to tell the workers that no batch is left."""

    @abstractmethod
    def drain(self, last: Batch) -> None:
        """Wait until all batches up to this one are done."""

    @abstractmethod
    def finish(self) -> None:
        """After `deal(None)`: wait until all workers have run out of batches."""

    @abstractmethod
    def reports(self) -> list[Report]:
        """What each worker has counted since the last call; the trainer's stages have the current weights after it."""

    def recorded(self) -> list[Recorded]:
        """All recorded steps."""
        return self.interleaving.recorded()

    @abstractmethod
    def copies(self) -> Sequence[Iterable[Tensor]]:
        """Each group's copy of the weights; they are averaged at each barrier."""

    def ideal_speedup(self, ratio: float, batches: int) -> float:
        """λ if workers never wait, by β and the number of batches: each takes whole batches forward and back."""
        return len(self.groups.names())

    def lead(self) -> Cut | None:
        """Deal all batches; return the cut at which `on_cut` asks to stop, if it does."""
        stopped_at = None
        while stopped_at is None and (batch := self.run.feed.pull()) is not None:
            self.deal(batch)
            if self.groups.barrier_after(batch):
                self.drain(batch)
                average(self.copies())
            if batch.cut:
                self._epochs += 1
                cut = self.cut()
                stopped_at = cut if self.run.on_cut(cut) else None
        self.deal(None)
        self.finish()
        average(self.copies())
        return stopped_at

    def cut(self) -> Cut:
        """The network as it is now, with all batches done and all workers idle, and the counts since the last cut."""
        reports = self.reports()
        for schedule in self._schedules:
            schedule.advance(self._done, self._epochs)
        counts = total([report.counts for report in reports])
        losses = sorted((item for report in reports for item in report.losses), key=lambda item: item[0])
        busy = sum(report.busy for report in reports) / len(reports)
        snapshots: list[Snapshot] = []
        for stage in self.stages:
            own = [(layer.name, count) for layer, count in zip(self.layers, counts) if layer.stage == stage.index]
            layers = {
                name: (c.started, c.finished, c.gaps / max(1, c.finished), c.widest, c.waits / max(1, c.finished))
                for name, c in own
            }
            updates, gaps = sum(c.finished for _, c in own), sum(c.gaps for _, c in own)
            snapshot = Snapshot(
                stage.index,
                self._done,
                busy,
                gaps,
                [(loss, size) for _, loss, size in losses] if stage.is_last else [],
                stage.state() if self.run.spec.states else None,
                updates,
                layers=layers,
            )
            snapshots.append(snapshot)
        snapshots[0].recordings = tuple(recording for report in reports for recording in report.recordings)
        waits = [count.waits / max(1, count.finished) for count in counts]
        times = Tally.total(report.tally for report in reports).times(waits, self.ideal_speedup, self.interleaving.unit)
        return Cut(self._done, tuple(snapshots), time.perf_counter(), times)


BuildPool = Callable[[Run, Interleaving], Pool]
