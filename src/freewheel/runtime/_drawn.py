"""The random numbers of captured functions: generators and seeds, set before every replay."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from freewheel._seeds import seed_of
from freewheel.plan import Unit
from freewheel.stage import NotYetError, SeededDraws, Stage

AHEAD = 64  # seeds that are written at once


class Kind(Enum):
    """What random numbers are drawn with."""

    UNIT = "the generator of a unit's own random numbers"
    GENERATOR = "a generator, seeded with a key"
    SEED = "the seed of a key, on the device"


class Draw(NamedTuple):
    """Random numbers that a function draws."""

    kind: Kind
    key: tuple[int, ...] = ()  # with 0 in place of the batch
    used: bool = True


class DrawRecorder:
    """What a function draws, in order."""

    def __init__(self) -> None:
        self._found: list[SeededDraws | Draw] = []

    def add(self, found: SeededDraws | Draw) -> None:
        """Add a context of the unit's own random numbers, or others."""
        self._found.append(found)

    def draws(self) -> list[Draw]:
        """Return all, once the function has returned."""
        return [Draw(Kind.UNIT, used=e.used) if isinstance(e, SeededDraws) else e for e in self._found]


class SeedTable:
    """The seeds of the next batches of a slot, on the device: every replay takes one.

    Args:
        device: The device.
        every: The number of slots: every so many batches, one is in this slot.
    """

    def __init__(self, device: torch.device, every: int) -> None:
        self._every, self._due = every, -1
        self._seeds = torch.zeros(AHEAD, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._taken = torch.zeros(1, dtype=torch.int64, device=device)
        self.seed = self._taken[0]

    def take(self) -> None:
        """Take the next seed; this is captured."""
        torch.index_select(self._seeds, 0, self._position, out=self._taken)
        self._position.add_(1)

    def fill(self, batch: int, key: tuple[int, ...]) -> None:
        """Write the seeds of a batch and later ones, unless they are there."""
        if batch != self._due:
            self._end = batch + AHEAD * self._every
            numbers = range(batch, self._end, self._every)
            seeds = [seed_of(*key[:2], number, *key[3:]) for number in numbers]
            self._seeds.copy_(torch.tensor(seeds, pin_memory=self._seeds.is_cuda), non_blocking=True)
            self._position.zero_()
        self._due = batch + self._every if batch + self._every < self._end else -1


class Sources:
    """The generators and seeds of a captured function.

    Args:
        draws: What it draws, in order.
        graph: The graph that it will be captured as.
        device: The device.
        slots: The number of slots.
    """

    def __init__(self, draws: Sequence[Draw], graph: torch.cuda.CUDAGraph, device: torch.device, slots: int) -> None:
        self._generators: list[tuple[tuple[int, ...], torch.Generator]] = []
        self._tables: list[tuple[tuple[int, ...], SeedTable]] = []
        self._left = iter([(draw, self._source(draw, graph, device, slots)) for draw in draws])

    def _source(self, draw: Draw, graph: torch.cuda.CUDAGraph, device: torch.device, slots: int) -> Any:
        if draw.kind is Kind.SEED:
            table = SeedTable(device, slots)
            self._tables.append((draw.key, table))
            return table.seed
        if not draw.used:
            return None
        generator = torch.Generator(device)
        graph.register_generator_state(generator)
        self._generators.append((draw.key, generator))
        return generator

    def __bool__(self) -> bool:
        return bool(self._tables or self._generators)

    def begin(self) -> None:
        """Take the seeds; this is captured before the function."""
        for _, table in self._tables:
            table.take()

    def next(self, kind: Kind, key: tuple[int, ...] = ()) -> Any:
        """Return the source of the next draw, which must be this one, as in the call before."""
        draw, source = next(self._left, (None, None))
        if draw is None or draw[:2] != (kind, key):
            raise NotYetError
        return source

    def seed(self, stage: Stage, unit: Unit) -> None:
        """Seed all for a unit."""
        for key, table in self._tables:
            table.fill(stage.first_batch + unit[0], key)
        for key, generator in self._generators:
            own = (*key[:2], stage.first_batch + unit[0], *key[3:]) if key else stage.key_of(unit)
            generator.manual_seed(seed_of(*own))


def without_batch(key: tuple[int, ...]) -> tuple[int, ...]:
    """Return a key with 0 in place of the number of the batch.

    Example:
        >>> without_batch((7, 1, 25, 3))
        (7, 1, 0, 3)
    """
    return *key[:2], 0, *key[3:]
