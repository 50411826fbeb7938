"""A run: the stages of one `fit`, their batches, and the cuts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from freewheel._config import RunConfig
from freewheel.runtime._channels import Channel, Sender
from freewheel.runtime._cut import Snapshot
from freewheel.runtime._feed import Feed
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._reading import Batch
from freewheel.runtime._repeat import RepeatingFeed
from freewheel.runtime._replicas import shards
from freewheel.runtime._spec import RunSpec
from freewheel.runtime._wiring import PREFETCH, close_all, depth_of, input_name, stage_wires, target_name
from freewheel.runtime._world import Wire
from freewheel.stage import Blueprint, Stage
from freewheel.trace import Tracer

if TYPE_CHECKING:
    from freewheel.racing import RaceTimes


@dataclass(frozen=True)
class Cut:
    """The network after exactly `batches` batches: a snapshot of every stage, and when the last one came.

    `race` has the times of a race since the cut before.
    """

    batches: int
    snapshots: tuple[Snapshot, ...]
    time: float
    race: RaceTimes | None = None

    @property
    def saved(self) -> bool:
        """Whether this is a checkpoint, which every stage has written its file of."""
        return bool(self.snapshots[0].saved)

    @property
    def step(self) -> bool:
        """Whether this is the report of one update."""
        return self.snapshots[0].step


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the cut at which `on_cut` asked to stop, if it did, and what came after the last cut.

    `history` is the history of the fit, as plain data, where another process has led the run.
    """

    stopped_at: Cut | None
    rest: Cut | None
    history: dict[str, Any] | None = None


@dataclass
class Run:
    """All a runtime needs to know."""

    config: RunConfig
    stages: Sequence[Stage]  # in order, of the first replica
    blueprints: Sequence[Blueprint]  # of each stage of each replica: what it is built from, here or elsewhere
    feed: Feed
    spec: RunSpec
    on_cut: Callable[[Cut], bool]  # called with each complete cut; returning True ends the run there
    encode_history: Callable[[Outcome], dict[str, Any]]  # the history that other processes receive in the end
    strict: bool = True  # whether a runtime that was asked for by name refuses what it would do in another way

    def __post_init__(self) -> None:
        self.schedule = self.stages[0].schedule
        self.threads = self.config.threads or 1  # intra-op threads of each stage
        self.size = self.schedule.stages * self.schedule.replicas  # stages of all replicas
        checkpoint = self.spec.checkpoint
        # Batches that each stage had before the run.
        self._fetched = checkpoint.forwarded if checkpoint else (0,) * self.schedule.stages
        self._incomplete: dict[tuple[int, bool, bool], list[Snapshot]] = {}
        self._lock = threading.Lock()
        self.on_complete: Callable[[Cut], None] = lambda cut: None  # set by the runtime

    def collect(self, snapshot: Snapshot) -> None:
        """Add a stage's snapshot to its cut; the last one completes the cut."""
        with self._lock:
            key = snapshot.batches, bool(snapshot.saved), snapshot.step
            snapshots = self._incomplete.setdefault(key, [])
            snapshots.append(snapshot)
            if len(snapshots) < self.size:
                return
            del self._incomplete[key]
            self.on_complete(cut_of(snapshots))  # before a later cut is complete

    def distribute(self, batch: Batch, senders: Mapping[str, Sender]) -> None:
        """Send each replica's shard to the stages that need it, unless they had it before the checkpoint."""
        for replica, (x, target, size, fraction) in enumerate(shards(batch, self.schedule.replicas)):
            if batch.number >= self._fetched[0]:
                senders[input_name(replica)].put((x, size))
            for stage in range(self.schedule.stages):
                if self.schedule.gets_targets(stage) and batch.number >= self._fetched[stage]:
                    senders[target_name(replica, stage)].put((target, size, batch.length, fraction))

    def stage_at(self, rank: int) -> Stage:
        """The stage of a rank; those of later replicas begin as copies of the first."""
        if rank < self.schedule.stages:
            return self.stages[rank]
        copy = self.blueprints[rank].build()
        copy.load(self.stages[rank % self.schedule.stages].state())
        return copy

    @contextmanager
    def begun(self) -> Iterator[Sequence[Stage]]:
        """A context in which the stages of all replicas are ready for batches."""
        stages = [self.stage_at(rank) for rank in range(self.size)]
        for stage in stages:
            stage.begin(*self.spec.before)
        try:
            yield stages
        finally:
            for stage in stages:
                stage.end()


def cut_of(snapshots: Sequence[Snapshot]) -> Cut:
    """The cut of these snapshots: for each stage that of its first replica, with the counts of all."""
    by_stage: dict[int, list[Snapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda each: (each.stage, each.replica)):
        by_stage.setdefault(snapshot.stage, []).append(snapshot)
    return Cut(snapshots[0].batches, tuple(_merged(each) for each in by_stage.values()), time.perf_counter())


def _merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The snapshots of a stage's replicas as one."""
    first, *others = snapshots
    if not others:
        return first
    return replace(
        first,
        busy=sum(each.busy for each in snapshots) / len(snapshots),
        losses=[loss for each in snapshots for loss in each.losses],
        saved=tuple(file for each in snapshots for file in each.saved),
        recordings=tuple(recording for each in snapshots for recording in each.recordings),
    )


class LocalRun:
    """A run within this process: an interpreter for each stage of each replica, and the channels between them."""

    def __init__(
        self,
        run: Run,
        stages: Sequence[Stage],
        channel: Callable[[Wire], Channel] = lambda wire: Channel(wire.capacity),
        feed: RepeatingFeed | None = None,
        tracer: Callable[[Stage], Tracer | None] = lambda stage: None,
    ) -> None:
        self.run = run
        # One replica runs ahead of another by at most the delay; where one thread runs all, none may wait for that.
        prefetch = PREFETCH if run.schedule.replicas == 1 else depth_of(run.schedule)
        wires = stage_wires(run.schedule, 0, prefetch)
        self.channels = {wire.name: channel(wire) for wire in wires}
        self._feed = feed or run.feed
        known = self._feed, self.channels, run.spec, run.collect
        self.interpreters = [Interpreter(stage, *known, tracer(stage)) for stage in stages]

    def deliver(self) -> bool:
        """Distribute the next batch of the feed; return False when there is none."""
        batch = self.run.feed.pull()
        if batch is None:
            return False
        self.run.distribute(batch, self.channels)
        return True

    def outcome(self, stopped_at: Cut | None) -> Outcome:
        """How the run ended."""
        batches = self._feed.announced
        return Outcome(stopped_at, cut_of([interpreter.snapshot(batches) for interpreter in self.interpreters]))

    def close(self) -> None:
        """Stop every thread that waits for a message or a batch."""
        self.run.feed.close()
        close_all(self.channels)
