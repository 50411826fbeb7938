"""CPU cores: their number, their division among stages, and intra-op threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """The number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this system
        return os.cpu_count() or 1


def share(stages: int) -> int:
    """The intra-op threads of each stage when the cores are divided evenly."""
    return max(1, cores() // stages)


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """A context in which operations of this thread use `count` threads each."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
