"""Recording what a stage does on a GPU: by events on its stream, since the host only launches."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from freewheel.trace._recording import Recording, Row
from freewheel.trace._tracer import HostTracer, Tracer

NEAR = 1.0  # seconds: the time between two events is a 32-bit float, and exact enough up to here


class TimeBase(NamedTuple):
    """An event of a GPU from which others are measured, and when it happened by the clock of the host."""

    event: Any
    time: float

    @classmethod
    def of(cls, device: torch.device) -> TimeBase:
        """An event that happens now. The host learns of it a little late, so times of two bases differ by some µs."""
        event = torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(device):
            event.record()
        event.synchronize()
        return cls(event, time.perf_counter())


class StreamTracer(HostTracer):
    """Records by events on the current stream of a GPU.

    An action begins when the GPU has computed what was launched before it; a wait ends when the GPU need not wait any
    longer.

    Args:
        stage: The number of the stage.
        replica: Its replica.
        batches: The numbers of the batches that are recorded.
        base: What times are measured from; others may measure from it, too.
    """

    def __init__(self, stage: int, replica: int, batches: range, base: TimeBase) -> None:
        super().__init__(stage, replica, batches)
        self._base = base
        self._spare: list[Any] = []

    def take(self, *, whole: bool = True) -> tuple[Recording, ...]:
        """What has been recorded since the last call; `whole` waits for what the GPU has not finished."""
        done = next((i for i, row in enumerate(self._rows) if not whole and not row.end.query()), len(self._rows))
        rows, self._rows = self._rows[:done], self._rows[done:]
        timed = [self._timed(row) for row in rows]
        return (Recording.of(self._stage, self._replica, timed),) if timed else ()

    def _mark(self) -> Any:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _timed(self, row: Row) -> Row:
        row.end.synchronize()
        return row._replace(begin=self._when(row.begin), end=self._when(row.end))

    def _when(self, event: Any) -> float:
        """The time of an event, whose successors are measured from it once it is far from the base."""
        moment = self._base.time + self._base.event.elapsed_time(event) / 1e3
        if moment - self._base.time > NEAR:
            self._base = TimeBase(event, moment)
        else:
            self._spare.append(event)
        return moment


def tracer_for(stage: int, replica: int, device: torch.device, batches: range | None) -> Tracer:
    """The tracer of a stage on a device; it records nothing if no batches are traced.

    Example:
        >>> tracer_for(0, 0, torch.device("cpu"), None).take()
        ()
    """
    if batches is None:
        return Tracer()
    if device.type == "cuda":
        return StreamTracer(stage, replica, batches, TimeBase.of(device))
    return HostTracer(stage, replica, batches)
