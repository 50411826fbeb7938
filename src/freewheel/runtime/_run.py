"""A run: the stages of one `fit`, wired up with channels, and the cuts they give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freewheel.plan import DIRECTION, Op, Schedule, capacity, channel_of
from freewheel.runtime._channels import Channel
from freewheel.runtime._feed import Feed
from freewheel.runtime._interpreter import Interpreter, Part
from freewheel.stage import Stage


@dataclass(frozen=True)
class Cut:
    """The network after exactly `batches` batches: one part from every stage, and when the last one came."""

    batches: int
    parts: tuple[Part, ...]
    time: float


class Run:
    """Everything that a runtime needs to run: interpreters, their channels and the feed.

    Args:
        stages: The stages, in order.
        feed: The batches.
        on_cut: Called with each complete cut; returning True ends the run there.
        states: Whether cuts hold copies of the weights.
        prefetch: Batches that wait in front of the first stage.
        threads: Intra-op threads that each stage computes with.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        feed: Feed,
        *,
        on_cut: Callable[[Cut], bool],
        states: bool,
        prefetch: int = 2,
        threads: int = 1,
    ) -> None:
        self.feed, self.on_cut, self.threads = feed, on_cut, threads
        schedule = stages[0].options.schedule
        channels = _channels(schedule)
        self.inputs = Channel(prefetch)
        # A target waits for its batch to come through, and the pipeline holds no more batches than this.
        self.targets = Channel(
            prefetch + 1 + sum(a for a, _ in schedule.lengths()) + schedule.stages + schedule.delays[0]
        )
        self._all = [self.inputs, self.targets, *channels.values()]
        self._parts: dict[int, list[Part]] = {}
        self._lock = threading.Lock()
        self.complete: Callable[[Cut], None] = lambda cut: None  # set by the runtime
        self.interpreters = [
            Interpreter(
                stage,
                feed,
                inputs=self.inputs if stage.index == 0 else None,
                targets=self.targets if stage.is_last else None,
                links=_links(channels, stage.index),
                on_part=self._collect,
                states=states,
            )
            for stage in stages
        ]

    def deliver(self) -> bool:
        """Takes a batch from the feed to the first and the last stage; False when there is none."""
        batch = self.feed.pull()
        if batch is None:
            return False
        self.inputs.put((batch.x, batch.size))
        self.targets.put((batch.target, batch.size))
        return True

    def close(self) -> None:
        """Turns away everyone who waits for a message or a batch."""
        self.feed.close()
        for channel in self._all:
            channel.close()

    def _collect(self, part: Part) -> None:
        with self._lock:
            parts = self._parts.setdefault(part.batches, [])
            parts.append(part)
            if len(parts) < len(self.interpreters):
                return
            del self._parts[part.batches]
        self.complete(Cut(part.batches, tuple(sorted(parts, key=lambda p: p.stage)), time.perf_counter()))


def _channels(schedule: Schedule) -> dict[tuple[str, int], Channel]:
    pairs = [(letter, boundary) for letter in DIRECTION for boundary in range(schedule.stages - 1)]
    return {pair: Channel(capacity(schedule, pair)) for pair in pairs}


def _links(channels: dict[tuple[str, int], Channel], stage: int) -> dict[Op, Channel]:
    """The channels of one stage, by the op that uses them."""
    used = {op: channels.get(channel_of(op, stage)) for op in Op if not op.is_compute}
    return {op: channel for op, channel in used.items() if channel is not None}
