"""The share of additions that is lost when threads add to one tensor without a lock, and the cost of a lock."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

SIZES = (16, 1024, 65536, 1 << 20)
LARGEST = 1 << 24  # whole numbers up to here are exact in float32
WORK = 40_000_000  # additions of single numbers per thread, roughly


def additions(
    *, threads: int = 2, sizes: Sequence[int] = SIZES, work: int = WORK, repeats: int = 3
) -> list[dict[str, Any]]:
    """Let threads add 1 to every number of a shared tensor repeatedly, with a lock and without.

    Args:
        threads: The number of threads.
        sizes: Sizes of the tensor.
        work: Additions of single numbers per thread, roughly.
        repeats: Repetitions; medians are reported.

    Returns:
        For each size the calls per thread, the share of lost additions and the microseconds per call, each free and
        locked.
    """
    rows = []
    for size in sizes:
        calls = min(max(work // size, 100), 20_000, LARGEST // threads - 1)
        free = [_race(threads, size, calls, lock=None) for _ in range(repeats)]
        locked = [_race(threads, size, calls, lock=threading.Lock()) for _ in range(repeats)]
        rows.append(
            {
                "size": size,
                "calls": calls,
                "threads": threads,
                "lost": statistics.median(lost for lost, _ in free),
                "lost_locked": statistics.median(lost for lost, _ in locked),
                "microseconds": statistics.median(seconds for _, seconds in free) / (threads * calls) * 1e6,
                "microseconds_locked": statistics.median(seconds for _, seconds in locked) / (threads * calls) * 1e6,
            }
        )
    return rows


def _race(threads: int, size: int, calls: int, *, lock: threading.Lock | None) -> tuple[float, float]:
    """The share of lost additions, and the seconds it took."""
    tensor, one = torch.zeros(size), torch.ones(size)
    guard, begin = lock or nullcontext(), threading.Barrier(threads + 1)

    def add() -> None:
        torch.set_num_threads(1)
        begin.wait()
        for _ in range(calls):
            with guard:
                tensor.add_(one)

    workers = [threading.Thread(target=add) for _ in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    return 1.0 - tensor.double().mean().item() / (threads * calls), seconds
