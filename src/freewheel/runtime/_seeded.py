"""The process-wide generators, seeded for a run."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the process-wide generators start from this seed; afterwards they are as they were."""
    before, python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(state)
