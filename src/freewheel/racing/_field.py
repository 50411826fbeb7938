"""What those who race have in common: batches that wait, batches that are done, and what all have counted."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn

from freewheel.racing._counts import LayerCount, together
from freewheel.racing._layers import Layer
from freewheel.racing._stepper import Schedule
from freewheel.racing._turns import CALLER, Exchange, Turns
from freewheel.racing._worker import Worker
from freewheel.runtime import Batch, Cut, Part, Run
from freewheel.stage import Stage

# Stages on these modules, with optimizers and schedules of their own.
Make = Callable[[Sequence[nn.Module]], list[Stage]]


class End(NamedTuple):
    """Comes in place of a batch when there is none any more."""

    number: str = "over"


END = End()


class Inbox:
    """Batches that wait for a worker."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def has(self, number: int | None) -> bool:
        """Whether this one waits here, or any."""
        return bool(self.items) if number is None else any(item.number == number for item in self.items)

    def take(self, number: int | None) -> Any:
        """Takes this one out, or the first."""
        if number is None:
            return self.items.popleft()
        item = next(item for item in self.items if item.number == number)
        self.items.remove(item)
        return item


class Field(ABC):
    """The workers of a run within this process, and what they share.

    Args:
        run: The run.
        stages: The stages, ready for batches; their weights are those that are raced on.
        layers: Their layers.
        turns: Who may make a step when.
        make: Makes stages on aliases of the weights.
    """

    def __init__(self, run: Run, stages: Sequence[Stage], layers: list[Layer], turns: Turns, make: Make) -> None:
        self.run, self.stages, self.layers, self.turns, self.make = run, stages, layers, turns, make
        self._schedules = [Schedule(stage) for stage in stages]
        self._dealt = self._done = 0
        self._over = False

    @property
    @abstractmethod
    def workers(self) -> dict[str, tuple[Worker, Callable[[], None]]]:
        """By name, and what each of them does to the end."""

    @abstractmethod
    def _inbox(self, number: int) -> Inbox:
        """Where a batch waits."""

    def meets(self, batch: Batch) -> bool:
        """Whether all must be done before the batch after this one is given out."""
        return batch.cut

    def _meet(self) -> None:  # noqa: B027
        """All batches are done, and nobody works."""

    # -- by the caller ---------------------------------------------------------------------------------------------

    def deal(self, batch: Batch | End) -> None:
        """Gives a batch out, or says that there is none any more."""

        def do(number: int | None) -> Batch | End:
            if isinstance(batch, End):
                self._over = True
            else:
                self._inbox(batch.number).items.append(batch)
                self._dealt += 1
            return batch

        def ready(number: int | None) -> bool:  # how many wait is a matter of memory alone
            room = isinstance(batch, End) or len(self._inbox(batch.number).items) < self.run.prefetch
            return number is not None or room

        self.turns.exchange(CALLER, Exchange("deal", ready, do))

    def drain(self, last: Batch) -> None:
        """Waits until all batches are done, and lets the workers' results come together."""
        self.turns.exchange(CALLER, Exchange("drained", lambda number: self._done == self._dealt, lambda number: last))
        self._meet()

    def finish(self) -> None:
        """After the last worker has gone."""
        self._meet()

    def cut(self) -> Cut:
        """The network as it is; all batches are done, and nobody works. What is counted starts anew."""
        batches = self._done
        for schedule in self._schedules:
            schedule.reach(batches)
        tallies = [worker.tally for worker, _ in self.workers.values()]
        counts = together([tally.layers() for tally in tallies])
        losses = sorted((item for tally in tallies for item in tally.losses), key=lambda item: item[0])
        busy = sum(tally.busy for tally in tallies) / len(tallies)
        for tally in tallies:
            tally.clear()
        return cut_of(self.run, self.stages, self.layers, batches, counts, losses, busy)

    # -- by the workers --------------------------------------------------------------------------------------------

    def done(self, worker: Worker, finished: Any, give_back: Callable[[Any], object] = lambda finished: None) -> None:
        """A batch is done with, and what it was done with is given back."""

        def do(number: int | None) -> Any:
            self._done += 1
            give_back(finished)
            return finished

        self.turns.exchange(worker.name, Exchange("done", lambda number: True, do))


def cut_of(
    run: Run,
    stages: Sequence[Stage],
    layers: Sequence[Layer],
    batches: int,
    counts: Sequence[LayerCount],
    losses: Sequence[tuple[int, Any, int]],
    busy: float,
) -> Cut:
    """The cut that all workers have come to together."""
    parts: list[Part] = []
    for stage in stages:
        ours = [(layer.name, count) for layer, count in zip(layers, counts) if layer.stage == stage.index]
        updates, gaps = sum(c.finished for _, c in ours), sum(c.gaps for _, c in ours)
        part = Part(
            stage.index,
            batches,
            busy,
            gaps,
            [(loss, size) for _, loss, size in losses] if stage.is_last else [],
            stage.state() if run.states else None,
            updates,
            layers={name: (c.started, c.finished, c.gaps / max(1, c.finished)) for name, c in ours},
        )
        parts.append(part)
    return Cut(batches, tuple(parts), time.perf_counter())
