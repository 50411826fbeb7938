"""`freewheel bench transport`: the latency of a message, by its size.

A message goes to another process and comes back, repeatedly; half of a round trip is one way, and includes the copies
of sender and receiver. The contenders take turns at each size, and the medians over the turns are compared, so that a
noisy machine affects all of them alike. Between threads nothing is copied, and size does not matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from freewheel._cores import intra_op_threads
from freewheel.bench._machine import machine
from freewheel.bench._transport_pair import CHANNEL, Partner

SIZES = (4, 1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24)
LARGE = 1 << 20  # bytes from which copying dominates
WARM_UP = 3
MOST_TRIPS, LEAST_TRIPS, BYTES = 200, 8, 1 << 27  # round trips per turn: as many as carry these bytes


def transport(
    *,
    repeats: int = 5,
    sizes: Sequence[int] = SIZES,
    trips: int | None = None,
    log: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measure every transport with messages of every size.

    Args:
        repeats: Turns of each contender at each size.
        sizes: Sizes of a message in bytes.
        trips: Round trips per turn; by default fewer for larger messages.
        log: Called with a line of progress.

    Returns:
        `rows`, one per contender and size: `name`, `bytes`, median `microseconds` one way, `gigabytes_per_second` for
        large messages that are copied (None for others), and the microseconds of each of its `turns`. Also the `trips`
        by size, and the `machine`.
    """
    counts = {size: trips or max(LEAST_TRIPS, min(MOST_TRIPS, BYTES // size)) for size in sizes}
    times: dict[tuple[str, int], list[float]] = {}
    with intra_op_threads(1), Partner() as partner:
        for size, count in counts.items():
            for repeat in range(repeats):
                for name in partner.names:
                    times.setdefault((name, size), []).append(_turn(partner, name, size, count))
                what = f"{len(partner.names)} contenders, {count} round trips each"
                log(f"{size} bytes: turn {repeat + 1} of {repeats}, {what}")
    rows = [row_of(name, size, turns) for (name, size), turns in times.items()]
    return {"rows": rows, "trips": counts, "machine": machine()}


def _turn(partner: Partner, name: str, size: int, trips: int) -> float:
    """The microseconds that a message takes one way, after a warm-up."""
    trip = partner.trip(name, torch.zeros(size, dtype=torch.uint8), WARM_UP + trips)
    for _ in range(WARM_UP):
        trip()
    begun = perf_counter()
    for _ in range(trips):
        trip()
    return 1e6 * (perf_counter() - begun) / trips / 2


def row_of(name: str, size: int, turns: list[float]) -> dict[str, Any]:
    """The result of a contender at a size."""
    middle = statistics.median(turns)
    copied = size >= LARGE and name != CHANNEL
    return {
        "name": name,
        "bytes": size,
        "microseconds": middle,
        "gigabytes_per_second": size / middle / 1e3 if copied else None,
        "turns": turns,
    }
