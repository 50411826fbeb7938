"""Sleeping for an exact time on average."""

from __future__ import annotations

import time


class Naps:
    """Sleeps that are exact in total: each is shortened by what the ones before have overslept.

    Example:
        >>> naps = Naps()
        >>> for _ in range(10):
        ...     naps.take(1e-4)
    """

    def __init__(self) -> None:
        self._due = 0.0

    def take(self, seconds: float) -> None:
        """Sleep for `seconds`, less what has been overslept."""
        self._due += seconds
        if self._due > 0:
            started = time.perf_counter()
            time.sleep(self._due)
            self._due -= time.perf_counter() - started
