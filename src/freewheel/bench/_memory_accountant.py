"""Counting memory: every block of every tensor, or what the operating system sees of the process.

The allocator of torch reports each block that it gives out and takes back while a profiler listens. Adding these up is
exact, and changes nothing of what is measured: gradients, tangents, what autograd saves and what a kernel needs for
itself are all blocks. Blocks that were there before are not part of it, and a view has none of its own.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from freewheel._malloc import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def peak_extra(run: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors that are held at once while something runs, beyond those held before.

    Example:
        >>> def two_then_one():
        ...     first, second = torch.zeros(1000), torch.zeros(500)
        ...     del first
        ...     return second.view(50, 10), torch.zeros(600)
        >>> peak_extra(two_then_one)
        6000
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return max(accumulate(changes(run), initial=0))


def changes(run: Callable[[], object]) -> list[int]:
    """The bytes that the allocator gives out (positive) and gets back (negative) while something runs, in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as listener:
        run()
    assert listener.profiler is not None
    assert listener.profiler.kineto_results is not None
    records = [event for event in listener.profiler.kineto_results.events() if event.name() == "[memory]"]
    records.sort(key=lambda record: record.start_ns())
    return [record.nbytes() for record in records]  # pyright: ignore[reportAttributeAccessIssue]


def peak_resident(run: Callable[[], object]) -> int:
    """By how many bytes the resident set of this process grows at most while something runs.

    It means something in a fresh process where `give_back` came first, and then the same on less data.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # without it, the mark of before stays, and what lies below it is not seen
        Path("/proc/self/clear_refs").write_text("5")
    before = _high_water_mark()
    run()
    return _high_water_mark() - before


def give_back(size: int) -> None:
    """Has blocks from this size on go back to the system as soon as they are freed, so that the resident set follows.

    Only what is allocated from here on: smaller blocks, and the gaps between them, stay with the process.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, size)
        mallopt(M_TRIM_THRESHOLD, size)


def _high_water_mark() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
