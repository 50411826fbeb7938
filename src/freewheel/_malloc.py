"""Keeping freed memory, so that stages do not queue up at the kernel for it.

A training step frees and allocates the same large activations again and again. glibc gives large blocks back to the
kernel at once and takes fresh, zeroed pages for the next ones; with several threads doing so, page faults cost a
tenth of a step and more. Here freed memory stays with the process, which then needs no more of it than at its peak.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20  # glibc takes no higher threshold for blocks of its own


@cache
def keep_freed_memory() -> bool:
    """Tells the allocator so, once; FREEWHEEL_KEEP_MEMORY=0 in the environment leaves it as it is.

    Returns whether anything was changed: not on systems without glibc's `mallopt`.
    """
    if os.environ.get("FREEWHEEL_KEEP_MEMORY", "1") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
