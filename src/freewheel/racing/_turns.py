"""Who may make a step when: all at once, or one worker at a time in an order that is drawn or read from a file.

Every worker asks before each of its steps, so that the same code runs in all three ways. The steps of batch 7:

| step         | what follows it                                                                      |
| ------------ | ------------------------------------------------------------------------------------ |
| `deal 7`     | the caller has given the batch out                                                   |
| `take 7`     | a worker has taken it, or its loss                                                   |
| `F7 conv1`   | the forward of this layer, and of all up to the next one that has weights            |
| `hand 7`     | the loss has been handed over                                                        |
| `B7`         | the backward, down to the first layer whose gradient is complete                     |
| `U7 conv1`   | the update of this layer                                                             |
| `B7 conv1`   | the backward below this layer, down to the next one whose gradient is complete       |
| `done 7`     | the batch is done with                                                               |
| `drained 7`  | the caller has seen that all batches up to this one are                              |
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from freewheel.runtime import ClosedError

CALLER = "caller"


class ReplayError(ValueError):
    """A recording that does not fit what it is replayed with."""


class Step(NamedTuple):
    """A step that was made, and when."""

    time: int  # ns
    worker: str
    text: str

    def __str__(self) -> str:
        return f"{self.worker}: {self.text}"


class Exchange(NamedTuple):
    """Something that is done at one blow, when it can be: giving out, taking, handing over.

    `ready` tells whether it can be done now, `do` does it and returns the batch that it was about. Both get the number
    of the batch that it must be about, or None where it may be any.
    """

    verb: str
    ready: Callable[[int | None], bool]
    do: Callable[[int | None], Any]


class Turns(ABC):
    """Lets workers make steps, and writes down which, if `recording`."""

    def __init__(self, *, recording: bool = False) -> None:
        self.recorded: list[Step] | None = [] if recording else None
        self._changed = threading.Condition()
        self._closed = False

    @abstractmethod
    def step(self, worker: str, text: str) -> None:
        """Returns when the worker may make this step."""

    @abstractmethod
    def exchange(self, worker: str, what: Exchange) -> Any:
        """Waits until it can be done, does it, and returns the batch."""

    def leave(self, worker: str) -> None:  # noqa: B027
        """The worker makes no further step."""

    def close(self) -> None:
        """Turns away everyone who asks from now on, and everyone who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _record(self, worker: str, text: str) -> None:
        if self.recorded is not None:
            self.recorded.append(Step(time.monotonic_ns(), worker, text))


class Free(Turns):
    """Everybody goes on at once: the real race. Only exchanges, which change no weight, take a lock."""

    def step(self, worker: str, text: str) -> None:
        """Never waits."""
        if self._closed:
            raise ClosedError
        self._record(worker, text)

    def exchange(self, worker: str, what: Exchange) -> Any:
        """Waits for others where it must."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or what.ready(None))
            if self._closed:
                raise ClosedError
            batch = what.do(None)
            self._record(worker, f"{what.verb} {batch.number}")
            self._changed.notify_all()
            return batch


class OneAtATime(Turns):
    """One worker goes on, all others wait; when it comes to its next step, it is decided who is next.

    Args:
        workers: All who take part; nobody goes on before all of them have come to their first step.
    """

    def __init__(self, workers: Sequence[str], *, recording: bool = False) -> None:
        super().__init__(recording=recording)
        self._present = list(workers)
        self._waiting: dict[str, str | Exchange] = {}
        self._going: str | None = None

    @abstractmethod
    def _next(self) -> str:
        """Who goes on; all who are present wait."""

    def _number(self, worker: str, what: Exchange) -> int | None:
        """The batch that an exchange must be about."""
        return None

    def step(self, worker: str, text: str) -> None:
        """Waits for its turn."""
        self._wait(worker, text)
        self._record(worker, text)

    def exchange(self, worker: str, what: Exchange) -> Any:
        """Waits for its turn, which comes when it can be done."""
        self._wait(worker, what)
        batch = what.do(self._number(worker, what))
        self._record(worker, f"{what.verb} {batch.number}")
        return batch

    def leave(self, worker: str) -> None:
        """Lets the next one go on."""
        with self._changed:
            self._present.remove(worker)
            self._pass_on(worker)

    def _wait(self, worker: str, step: str | Exchange) -> None:
        with self._changed:
            self._waiting[worker] = step
            self._pass_on(worker)
            self._changed.wait_for(lambda: self._closed or self._going == worker)
            if self._closed:
                raise ClosedError
            del self._waiting[worker]

    def _pass_on(self, worker: str) -> None:
        if self._going == worker:
            self._going = None
        if self._present and self._going is None and not self._closed and len(self._waiting) == len(self._present):
            self._going = self._next()
            self._changed.notify_all()


class Drawn(OneAtATime):
    """The order of steps is drawn from a seed: of all who could go on, each is as likely as any other."""

    def __init__(self, workers: Sequence[str], seed: int, *, recording: bool = False) -> None:
        super().__init__(workers, recording=recording)
        self._random = random.Random(seed)

    def _next(self) -> str:
        able = [worker for worker in self._present if self._able(self._waiting[worker])]
        assert able, f"everybody waits for somebody else: {self._waiting}"
        return self._random.choice(able)

    def _able(self, step: str | Exchange) -> bool:
        return isinstance(step, str) or step.ready(None)


class Followed(OneAtATime):
    """The order of steps is that of a recording."""

    def __init__(self, workers: Sequence[str], steps: Sequence[str], *, recording: bool = False) -> None:
        super().__init__(workers, recording=recording)
        self._steps, self._place = steps, 0
        self._batch: int | None = None

    def _next(self) -> str:
        if self._place == len(self._steps):
            worker, step = next((w, s) for w, s in self._waiting.items())
            raise _misfit(self._place, "has no further step", worker, step)
        line = self._steps[self._place]
        worker, _, text = line.partition(": ")
        step = self._waiting.get(worker)
        if step is None:
            raise _misfit(self._place, f"goes on with {line!r}", CALLER, self._waiting[CALLER])
        if isinstance(step, Exchange):
            verb, _, number = text.partition(" ")
            self._batch = int(number) if number.isdecimal() else None  # the end has no number
            fits = verb == step.verb and step.ready(self._batch)
        else:
            fits = text == step
        if not fits:
            raise _misfit(self._place, f"goes on with {line!r}", worker, step)
        self._place += 1
        return worker

    def _number(self, worker: str, what: Exchange) -> int | None:
        return self._batch


def _misfit(place: int, found: str, worker: str, step: str | Exchange) -> ReplayError:
    came = step if isinstance(step, str) else step.verb
    return ReplayError(
        f"replay: after {place} steps the recording {found}, but {worker} has come to {came!r}: replay it with the "
        "network, the method, the batches and the number of epochs that it was recorded with"
    )


def write_steps(path: str | Path, steps: Sequence[Step]) -> None:
    """Writes a recording, a step a line, in the order of time."""
    lines = [str(step) for step in sorted(steps, key=lambda step: step.time)]
    Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_steps(path: str | Path) -> list[str]:
    """The lines of a recording."""
    return Path(path).read_text(encoding="utf-8").splitlines()
