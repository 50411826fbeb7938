"""Counting memory: every block of every tensor, or the resident set of the process.

While a profiler is active, torch's allocator reports each block that it allocates and frees. Their sum is exact, and
counting does not change what is measured: gradients, tangents, what autograd saves and the workspace of a kernel are
all blocks. Blocks that existed before do not count, and a view has none of its own.
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
    """The peak bytes of tensors during a run, beyond those before it.

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
    """The bytes that are allocated (positive) and freed (negative) during a run, in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as listener:
        run()
    assert listener.profiler is not None
    assert listener.profiler.kineto_results is not None
    records = [event for event in listener.profiler.kineto_results.events() if event.name() == "[memory]"]
    records.sort(key=lambda record: record.start_ns())
    return [record.nbytes() for record in records]  # pyright: ignore[reportAttributeAccessIssue]


def peak_resident(run: Callable[[], object]) -> int:
    """The growth of the peak resident set of this process during a run, in bytes.

    It is meaningful in a fresh process, after `give_back` and after the same run on less data.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # otherwise the old mark stays, and what lies below it is not seen
        Path("/proc/self/clear_refs").write_text("5")
    before = _high_water_mark()
    run()
    return _high_water_mark() - before


def give_back(size: int) -> None:
    """Return blocks of at least this size to the system as soon as they are freed, so that the resident set follows.

    It applies to later allocations; smaller blocks, and the gaps between them, stay with the process.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, size)
        mallopt(M_TRIM_THRESHOLD, size)


def _high_water_mark() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
