"""`freewheel bench transport`: how long a message is under way, by its size.

A message goes to another process and comes back, again and again; half of a round trip is one way, the copies of the
sender and of the receiver included. The contenders take turns at each size, and the medians over the turns are
compared, so that a noisy machine is noisy for all of them. Between threads nothing is copied, and size does not matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from freewheel._cores import intra_op_threads
from freewheel.bench._machine import machine
from freewheel.bench._transport_pair import CHANNEL, Partner

SIZES = (4, 1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24)
LARGE = 1 << 20  # bytes from which on copying counts for more than the message itself
WARM_UP = 3
MOST_TRIPS, LEAST_TRIPS, BYTES = 200, 8, 1 << 27  # round trips of a turn: as many as carry so many bytes


def transport(
    *,
    repeats: int = 5,
    sizes: Sequence[int] = SIZES,
    trips: int | None = None,
    say: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measures every way for a message to travel, with messages of every size.

    Args:
        repeats: Turns that each contender gets at each size.
        sizes: Bytes of a message.
        trips: Round trips in a turn; by default fewer, the larger the message.
        say: Gets a line whenever something has been done.

    Returns:
        `rows`, one a contender and size: its `name`, `bytes`, median `microseconds` one way, `gigabytes_per_second` for
        large messages that are copied (None for others), and the microseconds of each of its `turns`. Beside them the
        `trips` by size, and the `machine`.
    """
    counts = {size: trips or max(LEAST_TRIPS, min(MOST_TRIPS, BYTES // size)) for size in sizes}
    times: dict[tuple[str, int], list[float]] = {}
    with intra_op_threads(1), Partner() as partner:
        for size, count in counts.items():
            for repeat in range(repeats):
                for name in partner.names:
                    times.setdefault((name, size), []).append(_turn(partner, name, size, count))
                field = f"{len(partner.names)} contenders, {count} round trips each"
                say(f"{size} bytes: turn {repeat + 1} of {repeats}, {field}")
    return {"rows": rows_of(times), "trips": counts, "machine": machine()}


def _turn(partner: Partner, name: str, size: int, trips: int) -> float:
    """The microseconds that a message takes one way, after a few to warm up."""
    trip = partner.trip(name, torch.zeros(size, dtype=torch.uint8), WARM_UP + trips)
    for _ in range(WARM_UP):
        trip()
    begun = perf_counter()
    for _ in range(trips):
        trip()
    return 1e6 * (perf_counter() - begun) / trips / 2


def rows_of(times: Mapping[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    """A row for each contender and size."""
    return [_row(name, size, turns) for (name, size), turns in times.items()]


def _row(name: str, size: int, turns: list[float]) -> dict[str, Any]:
    middle = statistics.median(turns)
    copied = size >= LARGE and name != CHANNEL
    return {
        "name": name,
        "bytes": size,
        "microseconds": middle,
        "gigabytes_per_second": size / middle / 1e3 if copied else None,
        "turns": turns,
    }
