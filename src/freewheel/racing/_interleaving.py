"""The interleaving of workers' steps: free, or one step at a time in an order drawn from a seed or read from a file.

Every worker asks before each step, so the same code runs in all three modes. The steps of batch 7:

| step         | what it starts or reports                                                            |
| ------------ | ------------------------------------------------------------------------------------ |
| `deal 7`     | the caller has put the batch into a queue                                            |
| `take 7`     | a worker has taken it, or its loss, from a queue                                     |
| `F7 conv1`   | the forward of this layer and of the layers without weights that follow it           |
| `hand 7`     | a forward worker has put the loss into the backward workers' queue                   |
| `B7`         | the backward, down to the first layer whose gradient is complete                     |
| `U7 conv1`   | the update of this layer                                                             |
| `S7 conv1 2` | the updated layer is sent to device 2                                                |
| `B7 conv1`   | the backward below this layer, down to the next layer whose gradient is complete     |
| `done 7`     | the batch is done                                                                    |
| `drained 7`  | a barrier: the caller has seen that all batches up to this one are done              |

At the end, the caller's `deal over` tells the workers that no batch is left, and each of them answers `take over`.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from freewheel.racing._times import Clock, HostClock, StepClock, StreamClock
from freewheel.runtime import ClosedError

CALLER = "caller"


class ReplayError(ValueError):
    """A recording that does not match the run that replays it."""


class PendingStep(NamedTuple):
    """A step of a computation, by its text in the recording."""

    text: str

    def ready(self, number: int | None) -> bool:
        """Always."""
        return True

    def matches(self, recorded: str, number: int | None) -> bool:
        """Whether this is the recorded step."""
        return recorded == self.text


class Exchange(NamedTuple):
    """An atomic operation on queues: dealing, taking or handing over a batch.

    `ready` returns whether it can be done now; `do` does it and returns the batch, or None if no batch is left. Both
    get the number of the batch it must be about, or None if any batch will do.
    """

    text: str
    ready: Callable[[int | None], bool]
    do: Callable[[int | None], Any]

    def matches(self, recorded: str, number: int | None) -> bool:
        """Whether this is the recorded step, and can be done now."""
        return recorded.partition(" ")[0] == self.text and self.ready(number)


class Recorded(NamedTuple):
    """A step that was made, and when."""

    time: int  # ns
    worker: str
    text: str

    def __str__(self) -> str:
        return f"{self.worker}: {self.text}"


class Interleaving(ABC):
    """Decides when workers may make their steps, and records the steps if `recording`."""

    unit: ClassVar[str]  # of its time

    def __init__(self, *, recording: bool = False) -> None:
        self.recording = recording
        self._recorded: list[Recorded] = []
        self._changed = threading.Condition()
        self._closed = False

    @abstractmethod
    def step(self, worker: str, text: str) -> None:
        """Block until the worker may make this step."""

    @abstractmethod
    def exchange(self, worker: str, exchange: Exchange) -> Any:
        """Block until the exchange can be done, do it, and return its batch."""

    @abstractmethod
    def now(self) -> float:
        """The time, the same for all workers."""

    @abstractmethod
    def clock(self, stream: torch.cuda.Stream | None) -> Clock:
        """What measures the computation of a worker, on a GPU if it has a stream."""

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """A stream for the work of one batch on a GPU; None if steps are computed in the order in which they are made.

        Example:
            >>> Drawn(["worker 0"], seed=0).stream(torch.device("cuda")) is None
            True
        """
        return None

    def leave(self, worker: str) -> None:  # noqa: B027
        """Note that the worker makes no further step."""

    def close(self) -> None:
        """Raise `ClosedError` in all pending and future steps."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def recorded(self) -> list[Recorded]:
        """The steps recorded since the last call."""
        steps, self._recorded = self._recorded, []
        return steps

    def _record(self, worker: str, text: str) -> None:
        if self.recording:
            self._recorded.append(Recorded(time.monotonic_ns(), worker, text))

    def _exchange(self, worker: str, exchange: Exchange, number: int | None) -> Any:
        batch = exchange.do(number)
        self._record(worker, f"{exchange.text} {'over' if batch is None else batch.number}")
        return batch


class Free(Interleaving):
    """All workers run at once: the real race. Only exchanges, which change no weights, take a lock."""

    unit = "s"

    def now(self) -> float:
        """In seconds."""
        return time.perf_counter()

    def clock(self, stream: torch.cuda.Stream | None) -> Clock:
        """In seconds."""
        return HostClock() if stream is None else StreamClock(stream)

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """One for each batch: the GPU computes them beside each other."""
        return torch.cuda.Stream(device) if device.type == "cuda" else None

    def step(self, worker: str, text: str) -> None:
        """Never blocks."""
        if self._closed:
            raise ClosedError
        self._record(worker, text)

    def exchange(self, worker: str, exchange: Exchange) -> Any:
        """Blocks until the exchange is ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or exchange.ready(None))
            if self._closed:
                raise ClosedError
            batch = self._exchange(worker, exchange, None)
            self._changed.notify_all()
            return batch


class OneAtATime(Interleaving):
    """One worker runs while all others are blocked; when it asks for its next step, the next worker is chosen.

    No step is made before all workers and the caller have asked for their first.
    """

    unit = "steps"

    def __init__(self, workers: Sequence[str], *, recording: bool = False) -> None:
        super().__init__(recording=recording)
        self._present = list(workers)
        self._pending: dict[str, PendingStep | Exchange] = {}
        self._running: str | None = None
        self._number: int | None = None  # of the batch that the next exchange must be about
        self._made = 0  # steps

    @abstractmethod
    def _next(self) -> str:
        """The worker to run next; every worker has a pending step."""

    def now(self) -> float:
        """The number of steps made."""
        return self._made

    def clock(self, stream: torch.cuda.Stream | None) -> Clock:
        """In steps."""
        return StepClock(lambda: self._made)

    def step(self, worker: str, text: str) -> None:
        """Blocks until it is this worker's turn."""
        self._wait(worker, PendingStep(text))
        self._record(worker, text)

    def exchange(self, worker: str, exchange: Exchange) -> Any:
        """Blocks until it is this worker's turn, which comes only when the exchange is ready."""
        self._wait(worker, exchange)
        return self._exchange(worker, exchange, self._number)

    def leave(self, worker: str) -> None:
        """Lets the next worker run."""
        with self._changed:
            self._present.remove(worker)
            self._yield_turn(worker)

    def _wait(self, worker: str, step: PendingStep | Exchange) -> None:
        with self._changed:
            self._pending[worker] = step
            self._yield_turn(worker)
            self._changed.wait_for(lambda: self._closed or self._running == worker)
            if self._closed:
                raise ClosedError
            del self._pending[worker]
            self._made += 1

    def _yield_turn(self, worker: str) -> None:
        if self._running == worker:
            self._running = None
        if self._present and self._running is None and not self._closed and len(self._pending) == len(self._present):
            self._running = self._next()
            self._changed.notify_all()


class Drawn(OneAtATime):
    """The next worker is drawn from a seed, uniformly among those whose pending step is ready."""

    def __init__(self, workers: Sequence[str], seed: int, *, recording: bool = False) -> None:
        super().__init__(workers, recording=recording)
        self._random = random.Random(seed)

    def _next(self) -> str:
        ready = [worker for worker in self._present if self._pending[worker].ready(None)]
        assert ready, f"deadlock: {self._pending}"
        return self._random.choice(ready)


class Replayed(OneAtATime):
    """The order of steps is that of a recording."""

    def __init__(self, workers: Sequence[str], steps: Sequence[str], *, recording: bool = False) -> None:
        super().__init__(workers, recording=recording)
        self._steps, self._position = steps, 0

    def _next(self) -> str:
        if self._position == len(self._steps):
            raise self._mismatch("has no further step", next(iter(self._pending)))
        line = self._steps[self._position]
        worker, _, text = line.partition(": ")
        number = text.partition(" ")[2]
        self._number = int(number) if number.isdecimal() else None  # `over` is no number
        step = self._pending.get(worker)
        if step is None or not step.matches(text, self._number):
            raise self._mismatch(f"continues with {line!r}", next(iter(self._pending)) if step is None else worker)
        self._position += 1
        return worker

    def _mismatch(self, found: str, worker: str) -> ReplayError:
        return ReplayError(
            f"replay: after {self._position} steps the recording {found}, but {worker} is at "
            f"{self._pending[worker].text!r}: replay it with the network, method, batches and number of epochs it was "
            "recorded with"
        )


def write_recording(path: str | Path, steps: Sequence[Recorded]) -> None:
    """Write a recording, one step per line, ordered by time."""
    lines = [str(step) for step in sorted(steps, key=lambda step: step.time)]
    Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_recording(path: str | Path) -> list[str]:
    """The lines of a recording."""
    return Path(path).read_text(encoding="utf-8").splitlines()
