"""Recording what a stage does, with the time at which each action begins and ends.

::

    begin >a   end      begin F   end      begin a>   end          one after another
    |  waits   |        | computes |       | waits for room |
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from freewheel.trace._recording import DATA, Recording, Row


class Tracer:
    """Records nothing: for a run that is not traced."""

    skipped = 0  # batches that were launched besides those that are numbered here

    def begin(self, name: str, batch: int, micro: int = 0, version: int | None = None) -> None:
        """Note that an action begins."""

    def end(self) -> None:
        """Note that the action that began last has ended."""

    def numbers(self, numbers: Iterator[int]) -> Iterator[int]:
        """The same numbers of batches; waiting for one is an action, too."""
        return numbers

    def take(self, *, whole: bool = True) -> tuple[Recording, ...]:
        """What has been recorded since the last call; `whole` waits for what a GPU has not finished."""
        return ()


class HostTracer(Tracer):
    """Records by the clock of the host.

    Args:
        stage: The number of the stage.
        replica: Its replica.
        batches: The numbers of the batches that are recorded.

    Example:
        >>> tracer = HostTracer(stage=0, replica=0, batches=range(2, 4))
        >>> for batch in range(3):
        ...     tracer.begin("F", batch, version=batch)
        ...     tracer.end()
        >>> [recording] = tracer.take()
        >>> recording.names, recording.rows[:, :4].tolist()
        (('F',), [[0.0, 2.0, 0.0, 2.0]])
    """

    def __init__(self, stage: int, replica: int, batches: range) -> None:
        self._stage, self._replica, self._batches = stage, replica, batches
        self._open: list[Row | None] = []
        self._rows: list[Row] = []

    def begin(self, name: str, batch: int, micro: int = 0, version: int | None = None) -> None:
        """Note that an action begins."""
        recorded = batch + self.skipped in self._batches
        self._open.append(Row(name, batch + self.skipped, micro, version, self._mark(), None) if recorded else None)

    def end(self) -> None:
        """Note that the action that began last has ended."""
        row = self._open.pop()
        if row is not None:
            self._rows.append(row._replace(end=self._mark()))

    def numbers(self, numbers: Iterator[int]) -> Iterator[int]:
        """The same numbers of batches; waiting for one is an action, too."""
        while True:
            begin = self._mark()
            number = next(numbers, None)
            if number is None:
                return
            if number + self.skipped in self._batches:
                self._rows.append(Row(DATA, number + self.skipped, 0, None, begin, self._mark()))
            yield number

    def take(self, *, whole: bool = True) -> tuple[Recording, ...]:
        """What has been recorded since the last call."""
        rows, self._rows = self._rows, []
        return (Recording.of(self._stage, self._replica, rows),) if rows else ()

    def _mark(self) -> Any:
        """Mark this moment."""
        return time.perf_counter()
