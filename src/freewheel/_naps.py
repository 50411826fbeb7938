"""Sleeping for the right time, on average."""

from __future__ import annotations

import time


class Naps:
    """Sleeps of which each leaves out what the ones before it overslept: a single one is late, all together are not.

    Example:
        >>> naps = Naps()
        >>> for _ in range(10):
        ...     naps.take(1e-4)
    """

    def __init__(self) -> None:
        self._due = 0.0

    def take(self, seconds: float) -> None:
        """Sleeps for so long, less what has been overslept."""
        self._due += seconds
        if self._due > 0:
            started = time.perf_counter()
            time.sleep(self._due)
            self._due -= time.perf_counter() - started
