"""The process-wide generators that a loader draws from: seeded for a run, saved and restored for checkpoints."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader


@runtime_checkable
class Stateful(Protocol):
    """A loader that can save and restore its position."""

    def state_dict(self) -> dict[str, Any]:
        """Its position."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position."""
        ...


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which the process-wide generators start from this seed; they are restored afterwards."""
    before = _generators()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        _set_generators(before)


def remember(loader: Any) -> dict[str, Any]:
    """The state of every generator that the next pass over a loader draws from, as plain data."""
    return {
        **_generators(),
        "own": [generator.get_state() for generator in _own(loader)],
        "loader": loader.state_dict() if isinstance(loader, Stateful) else None,
    }


def recall(loader: Any, remembered: dict[str, Any]) -> None:
    """Restore what `remember` returned, so that the next pass over a loader draws the same."""
    own, stateful = _own(loader), isinstance(loader, Stateful)
    if len(own) != len(remembered["own"]) or stateful != (remembered["loader"] is not None):
        raise ValueError("loader is of another kind than the one that the run began with: give the same kind")
    for generator, state in zip(own, remembered["own"]):
        generator.set_state(state)
    if stateful:
        loader.load_state_dict(remembered["loader"])
    _set_generators(remembered)


def _generators() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    kind, keys, *others = numpy.random.get_state() if numpy else ("", None)
    state = None if keys is None else (kind, keys.tolist(), *others)
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": state}


def _set_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    numpy = sys.modules.get("numpy")
    if numpy and states["numpy"] is not None:
        numpy.random.set_state(states["numpy"])


def _own(loader: Any) -> list[torch.Generator]:
    """The generators that belong to a DataLoader."""
    if not isinstance(loader, DataLoader):
        return []
    batches = loader.batch_sampler
    holders = (loader, loader.sampler, batches, getattr(batches, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
