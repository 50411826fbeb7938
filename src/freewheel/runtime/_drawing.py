"""A launcher that records which random numbers functions draw, and lets replays draw others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from freewheel.runtime._drawn import Draw, DrawRecorder, Kind, Sources, without_batch
from freewheel.runtime._places import Form
from freewheel.stage import Launcher, SeededDraws

FunctionKind = tuple[str, tuple[Form, ...]]  # the name of a function, and the forms of what it is fed


class DrawingLauncher(Launcher):
    """Records the random numbers of calls, and takes those of captures from sources that a replay can set."""

    def __init__(self) -> None:
        self._drawn: dict[FunctionKind, list[Draw]] = {}  # the random numbers of each function
        self._recorder: DrawRecorder | None = None  # while a function is called that may be captured
        self._sources: Sources | None = None  # while one is captured

    @contextmanager
    def _recorded_draws(self, kind: FunctionKind) -> Iterator[None]:
        """Record the random numbers that a function of this kind draws inside the context."""
        self._recorder = DrawRecorder()
        try:
            yield
            self._drawn[kind] = self._recorder.draws()
        finally:
            self._recorder = None

    def draws(self, *key: int) -> SeededDraws:
        """Return random numbers whose seed a replay can set."""
        if self._sources is not None:
            return SeededDraws(*key, generator=self._sources.next(Kind.UNIT))
        draws = SeededDraws(*key)
        if self._recorder is not None:
            self._recorder.add(draws)
        return draws

    def seeded(self, generator: torch.Generator, key: tuple[int, ...]) -> torch.Generator:
        """Return a generator whose seed a replay can set."""
        return self._source(Kind.GENERATOR, key) or super().seeded(generator, key)

    def seed(self, device: torch.device, key: tuple[int, ...]) -> Tensor:
        """Return a seed that a replay can set."""
        found = self._source(Kind.SEED, key)
        return super().seed(device, key) if found is None else found

    def _source(self, kind: Kind, key: tuple[int, ...]) -> Any:
        """Return the source of random numbers in a capture; otherwise record that they are drawn."""
        if self._sources is not None:
            return self._sources.next(kind, without_batch(key))
        if self._recorder is not None:
            self._recorder.add(Draw(kind, without_batch(key)))
        return None
