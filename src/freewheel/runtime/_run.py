"""A run: the stages of one `fit`, the batches they get, and the cuts they give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from freewheel.checkpoint import Checkpoint, CheckpointWriter
from freewheel.plan import SHARE, Op, capacity, routes
from freewheel.runtime._channels import Channel, Sender
from freewheel.runtime._feed import Batch, Feed
from freewheel.runtime._interpreter import Interpreter, Part
from freewheel.runtime._replicas import peers, shards
from freewheel.stage import Stage


@dataclass(frozen=True)
class Cut:
    """The network after exactly `batches` batches: one part from every stage, and when the last one came."""

    batches: int
    parts: tuple[Part, ...]
    time: float

    @property
    def saved(self) -> bool:
        """Whether this is a checkpoint that every stage has written its part of."""
        return bool(self.parts[0].saved)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the cut at which `on_cut` asked to stop, if it did, and what came after the last cut.

    `told` is what the process that led the run has told this one, where that was another.
    """

    stopped_at: Cut | None
    rest: Cut | None
    told: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Abroad:
    """What runtimes of several processes need to know.

    Args:
        orders: For each stage of each replica, what builds it, here or in its own process; see `freewheel.trainer`.
        timeout: Seconds without a sign of life after which a process is taken for lost.
        transport: How messages travel.
        interface: The network interface of gloo's sockets.
        tell: Makes what the other processes are told in the end, from the outcome.
    """

    orders: Sequence[Any] = ()
    timeout: float = 300.0
    transport: str = "auto"
    interface: str | None = None
    tell: Callable[[Outcome], dict[str, Any]] = lambda outcome: {}


@dataclass
class Run:
    """Everything that a runtime needs to know.

    Args:
        stages: The stages, in order; where there are replicas, those of the first.
        feed: The batches.
        on_cut: Called with each complete cut; returning True ends the run there.
        states: Whether cuts hold copies of the weights.
        prefetch: Batches that wait in front of the first stage.
        threads: Intra-op threads that each stage computes with.
        seed: Of the process-wide generators, where a stage has a process of its own.
        batches_before: Batches trained in earlier runs.
        epochs_before: Epochs trained in earlier runs.
        saver: Writes the stages' parts of checkpoints; `on_cut` is called with these cuts too.
        restart: The checkpoint that the run goes on from.
        abroad: For runtimes of several processes.
    """

    stages: Sequence[Stage]
    feed: Feed
    on_cut: Callable[[Cut], bool]
    states: bool
    prefetch: int = 2
    threads: int = 1
    seed: int = 0
    batches_before: int = 0
    epochs_before: int = 0
    saver: CheckpointWriter | None = None
    restart: Checkpoint | None = None
    abroad: Abroad = field(default_factory=Abroad)

    def __post_init__(self) -> None:
        self.schedule = self.stages[0].schedule
        self.places = self.schedule.stages * self.schedule.replicas  # stages of all replicas
        # A target waits for its batch to come through, and the pipeline holds no more batches than this.
        lengths = sum(a for a, _ in self.schedule.lengths())
        self.depth = self.prefetch + 1 + lengths + self.schedule.stages + self.schedule.delays[0]
        self._held = (
            self.restart.forwarded if self.restart else (0,) * self.schedule.stages
        )  # batches each stage has had
        self._parts: dict[tuple[int, bool], list[Part]] = {}
        self._lock = threading.Lock()
        self.complete: Callable[[Cut], None] = lambda cut: None  # set by the runtime

    def collect(self, part: Part) -> None:
        """Takes a stage's part of a cut; the last one completes it."""
        with self._lock:
            key = part.batches, bool(part.saved)
            parts = self._parts.setdefault(key, [])
            parts.append(part)
            if len(parts) < self.places:
                return
            del self._parts[key]
        self.complete(cut_of(parts))

    def hand_out(self, batch: Batch, senders: Mapping[str, Sender]) -> None:
        """Takes each replica's samples to the stages that need them, unless they were had before a checkpoint."""
        for replica, (x, target, size, part) in enumerate(shards(batch, self.schedule.replicas)):
            if batch.number >= self._held[0]:
                senders[input_of(replica)].put((x, size))
            for stage in range(self.schedule.stages):
                if self.schedule.gets_targets(stage) and batch.number >= self._held[stage]:
                    senders[target_of(replica, stage)].put((target, size, batch.length, part))

    def stage_at(self, rank: int) -> Stage:
        """A stage by its number, counted through all replicas; the later ones begin as copies of the first."""
        if rank < self.schedule.stages:
            return self.stages[rank]
        copy = self.abroad.orders[rank]()
        copy.load(self.stages[rank % self.schedule.stages].state())
        return copy

    @contextmanager
    def begun(self) -> Iterator[Sequence[Stage]]:
        """Inside, all stages, of all replicas, are ready for batches."""
        stages = [self.stage_at(rank) for rank in range(self.places)]
        for stage in stages:
            stage.begin(self.batches_before, self.epochs_before)
        try:
            yield stages
        finally:
            for stage in stages:
                stage.end()


def input_of(replica: int) -> str:
    """The name of the way that inputs take to the first stage."""
    return f"input {replica}"


def target_of(replica: int, stage: int) -> str:
    """The name of the way that targets take to a stage."""
    return f"target {replica} {stage}"


def cut_of(parts: Sequence[Part]) -> Cut:
    """The cut that these parts make, one a stage: that of its first replica, with what the others have counted."""
    by_stage: dict[int, list[Part]] = {}
    for part in sorted(parts, key=lambda part: (part.stage, part.replica)):
        by_stage.setdefault(part.stage, []).append(part)
    return Cut(parts[0].batches, tuple(_together(each) for each in by_stage.values()), time.perf_counter())


def _together(parts: Sequence[Part]) -> Part:
    """The parts of a stage's replicas as one."""
    first, *others = parts
    if not others:
        return first
    return replace(
        first,
        busy=sum(part.busy for part in parts) / len(parts),
        losses=[loss for part in parts for loss in part.losses],
        saved=tuple(file for part in parts for file in part.saved),
    )


class Local:
    """A run within this process: an interpreter for each stage of each replica, and the channels between them."""

    def __init__(self, run: Run, stages: Sequence[Stage]) -> None:
        self.run = run
        schedule, replicas = run.schedule, range(run.schedule.replicas)
        # One replica runs ahead of another by the delay at most; where one thread plays all, nobody may wait for that.
        ahead = run.prefetch if len(replicas) == 1 else run.depth
        self.batches = {input_of(r): Channel(ahead) for r in replicas} | {
            target_of(r, k): Channel(run.depth)
            for r in replicas
            for k in range(schedule.stages)
            if schedule.gets_targets(k)
        }
        pairs = [(m.letter, k) for m in schedule.messages if m.way for k in range(schedule.stages - 1)]
        channels = [{pair: Channel(capacity(schedule, *pair)) for pair in pairs} for _ in replicas]
        across = {
            (k, a, b): Channel(capacity(schedule, SHARE.letter, k))
            for k in range(schedule.stages)
            for a, b in permutations(replicas, 2)
        }
        every = [channel for each in channels for channel in each.values()]
        self._all = [*self.batches.values(), *every, *across.values()]
        self.interpreters = [
            Interpreter(
                stage,
                run.feed,
                inputs=self.batches[input_of(stage.replica)] if stage.index == 0 else None,
                targets=self.batches.get(target_of(stage.replica, stage.index)),
                links={**links(channels[stage.replica], stage), **peers(across, stage)},
                on_part=run.collect,
                states=run.states,
                saver=run.saver,
                restart=run.restart,
            )
            for stage in stages
        ]

    def deliver(self) -> bool:
        """Takes a batch from the feed to the stages that need it; False when there is none."""
        batch = self.run.feed.pull()
        if batch is None:
            return False
        self.run.hand_out(batch, self.batches)
        return True

    def outcome(self, stopped_at: Cut | None) -> Outcome:
        """How it ended."""
        batches = self.run.feed.announced
        return Outcome(stopped_at, cut_of([interpreter.part(batches) for interpreter in self.interpreters]))

    def close(self) -> None:
        """Turns away everyone who waits for a message or a batch."""
        self.run.feed.close()
        for channel in self._all:
            channel.close()


def links(channels: dict[tuple[str, int], Any], stage: Stage) -> dict[Op, Any]:
    """The channels of one stage to its neighbours, by the op that uses them."""
    return {op: channels[route] for op, route in routes(stage.schedule, stage.index).items() if route in channels}
