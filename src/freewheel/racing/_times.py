"""How far forwards and backwards overlap, and how long gradients wait for their update: λ and τ of the Async LU paper.

Paper: Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise updates, sections 3.3 and
3.4. A forward takes the time T, a backward βT; there are b batches and M layers.

    λ = (1 + β) b T / T_2              the time of all forwards and backwards in turn, over that of the race
    λ → (1 + β) b / (b + β)            if each backward runs beside later forwards, with one forward worker
    τ_m                                the time from the gradient of layer m to the update with it
    τ = τ_1 + … + τ_M                  0 under layer-wise updates
    τ → Σ (m - 1) βT / M = βT (M - 1) / 2    under block updates, with equal layers

The paper calls τ an average over the layers, but adds them up; the average is τ / M.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from freewheel.racing._memory import Layer


@dataclass(frozen=True, kw_only=True)
class RaceTimes:
    """The times of an epoch of a race, in seconds, or in steps of all workers under `simulate`.

    Args:
        forward: The mean time of a forward, T.
        backward: The mean time of a backward with its updates, βT.
        sending: The mean time in which a batch's updates are sent to other devices.
        ratio: β.
        speedup: λ: the time of all forwards and backwards, over the time from the first forward to the last update.
        ideal_speedup: λ if workers never wait for each other, except for the first loss and the last backward.
        wait: τ: the mean time from a layer's gradient to the update with it, added up over the layers.
        block_wait: τ of block updates with a backward of this time and equal layers.
        unit: `s` or `steps`.
    """

    forward: float
    backward: float
    sending: float
    ratio: float
    speedup: float
    ideal_speedup: float
    wait: float
    block_wait: float
    unit: str


class Span(NamedTuple):
    """A time, and the part of it in which the worker was computing."""

    elapsed: float
    computing: float


class Clock(ABC):
    """Marks moments in a worker's computation; how far apart they are is known once that has ended."""

    @abstractmethod
    def mark(self, *, step: bool = False) -> Any:
        """Now; with `step`, the moment at which the worker's present step began."""

    @abstractmethod
    def between(self, first: Any, second: Any) -> Span:
        """The time from one mark to another."""


class HostClock(Clock):
    """Seconds on a CPU. A thread that waits for a core or for the interpreter is not computing."""

    def mark(self, *, step: bool = False) -> Span:
        """The time, and that of this thread."""
        return Span(time.perf_counter(), time.thread_time())

    def between(self, first: Span, second: Span) -> Span:
        """Their difference; of marks of one thread."""
        return Span(second.elapsed - first.elapsed, second.computing - first.computing)


class StreamClock(Clock):
    """Seconds on a GPU, between events on a stream; all of them count as computing."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def mark(self, *, step: bool = False) -> torch.cuda.Event:
        """An event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> Span:
        """The time between two events that have happened."""
        seconds = first.elapsed_time(second) / 1e3
        return Span(seconds, seconds)


class StepClock(Clock):
    """Steps of all workers, of which one is made at a time; each takes from its number to the next."""

    def __init__(self, made: Callable[[], int]) -> None:
        self._made = made

    def mark(self, *, step: bool = False) -> int:
        """The number of steps made, or made before the present one."""
        return self._made() - step

    def between(self, first: int, second: int) -> Span:
        """Their difference."""
        return Span(second - first, second - first)


class Spans:
    """The spans of one backward: the whole, from each layer's gradient to its use, and of what is sent."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._began = self._ended = clock.mark()
        self._ready: dict[int, Any] = {}  # by layer
        self._used: dict[int, Any] = {}
        self._sent: list[tuple[Any, Any]] = []

    def gradient(self, layer: Layer) -> None:
        """The gradient of a layer is complete."""
        self._ready[layer.index] = self.clock.mark()

    def use(self, layer: Layer) -> None:
        """The update of a layer begins; a gradient that was never complete has not waited."""
        self._used[layer.index] = used = self.clock.mark(step=True)
        self._ready.setdefault(layer.index, used)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Context in which a layer is sent."""
        began = self.clock.mark(step=True)
        yield
        self._sent.append((began, self.clock.mark()))

    def end(self) -> None:
        """The backward has ended, with all updates."""
        self._ended = self.clock.mark()

    def whole(self) -> float:
        """The time in which the worker was computing."""
        return self.clock.between(self._began, self._ended).computing

    def sent(self) -> float:
        """The time in which it was sending."""
        return sum(self.clock.between(*span).computing for span in self._sent)

    def waits(self) -> Iterator[tuple[int, float]]:
        """For each layer, the time from its gradient to the update with it."""
        for layer, used in self._used.items():
            yield layer, self.clock.between(self._ready[layer], used).elapsed


class Tally(NamedTuple):
    """What a worker adds up: batches, the times of their forwards, backwards and sends, its first and last moment."""

    batches: int = 0
    forward: float = 0.0
    backward: float = 0.0
    sending: float = 0.0
    first: float = float("inf")
    last: float = float("-inf")

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Add up the tallies of all workers.

        Example:
            >>> Tally.total([Tally(1, 2.0, 4.0, 0.0, 0.0, 6.0), Tally(1, 2.0, 5.0, 0.0, 2.0, 9.0)])
            Tally(batches=2, forward=4.0, backward=9.0, sending=0.0, first=0.0, last=9.0)
        """
        batches, forward, backward, sending, first, last = zip(*tallies)
        return cls(sum(batches), sum(forward), sum(backward), sum(sending), min(first), max(last))

    def times(self, waits: Sequence[float], ideal: Callable[[float, int], float], unit: str) -> RaceTimes | None:
        """The times of an epoch, from the mean wait of each layer and λ by β and b; None without batches."""
        if not self.batches or not self.forward:
            return None
        ratio, backward = self.backward / self.forward, self.backward / self.batches
        return RaceTimes(
            forward=self.forward / self.batches,
            backward=backward,
            sending=self.sending / self.batches,
            ratio=ratio,
            speedup=(self.forward + self.backward) / (self.last - self.first),
            ideal_speedup=ideal(ratio, self.batches),
            wait=sum(waits),
            block_wait=backward * (len(waits) - 1) / 2,
            unit=unit,
        )
