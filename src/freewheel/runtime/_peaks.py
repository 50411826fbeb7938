"""The peaks of memory of worker processes: the system tells a caller nothing of those that a server process started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KIB = 1024
_largest = [0]  # of all workers of this process so far, in bytes


def note_peaks(workers: Sequence[Any]) -> None:
    """Note the peaks of workers that are still there."""
    for worker in workers:
        try:
            status = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8")
        except OSError:  # it has not begun or has ended, or this system has no such files
            continue
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        if found is not None:  # a process that is ending has no memory
            _largest[0] = max(_largest[0], KIB * int(found[1]))


def largest_worker() -> int | None:
    """The largest peak of memory of a worker of this process so far, in bytes; None if it is not known."""
    return _largest[0] or None
