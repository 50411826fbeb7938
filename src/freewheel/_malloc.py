"""Retaining freed memory, so that stages do not contend for it in the kernel.

A training step frees and allocates the same large activations again and again. glibc returns large blocks to the
kernel at once and takes fresh, zeroed pages for the next ones. With several threads, the page faults cost a tenth of a
step and more. Here freed memory stays with the process, whose peak does not grow.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20  # the highest threshold that glibc accepts


@cache
def keep_freed_memory() -> bool:
    """Configure the allocator once; FREEWHEEL_KEEP_MEMORY=0 in the environment leaves it as it is.

    Returns whether anything was changed, which is not the case without glibc's `mallopt`.
    """
    if os.environ.get("FREEWHEEL_KEEP_MEMORY", "1") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
