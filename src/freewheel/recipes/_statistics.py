"""Numbers of several runs, put together as papers report them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from freewheel._errors import one_of

OVER = ("median", "mean", "least", "most")


@dataclass(frozen=True)
class Statistics:
    """The statistics of a number over several runs; `deviation` is the sample's, None for a single run.

    Example:
        >>> found = Statistics.of([0.91, 0.93, 0.95])
        >>> round(found.mean, 4), round(found.deviation, 4), found.median, found.least, found.most
        (0.93, 0.02, 0.93, 0.91, 0.95)
        >>> found.over("median")
        0.93
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Statistics:
        """The statistics of these values, of which there must be one at least."""
        found = tuple(values)
        if not found:
            raise ValueError("values is empty: give the number of one run at least")
        return cls(
            values=found,
            mean=statistics.fmean(found),
            deviation=statistics.stdev(found) if len(found) > 1 else None,
            median=statistics.median(found),
            least=min(found),
            most=max(found),
        )

    def over(self, name: str) -> float:
        """The statistic of this name: `median`, `mean`, `least` or `most`."""
        one_of("over", name, OVER)
        return getattr(self, name)
