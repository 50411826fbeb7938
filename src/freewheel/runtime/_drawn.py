"""The random numbers of captured functions: generators and seeds, set before every replay."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.plan import Unit
from freewheel.stage import NotYetError, SeededDraws, Stage


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


class Sources:
    """The generators and seeds of a captured function.

    Args:
        draws: What it draws, in order.
        graph: The graph that it will be captured as.
        device: The device.
    """

    def __init__(self, draws: Sequence[Draw], graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._made = [(draw, self._source(draw, graph, device)) for draw in draws]
        self._left = iter(self._made)

    def _source(self, draw: Draw, graph: torch.cuda.CUDAGraph, device: torch.device) -> torch.Generator | Tensor | None:
        if draw.kind is Kind.SEED:
            return torch.zeros((), dtype=torch.int64, device=device)
        if not draw.used:
            return None
        generator = torch.Generator(device)
        graph.register_generator_state(generator)
        return generator

    def next(self, kind: Kind, key: tuple[int, ...] = ()) -> Any:
        """Return the source of the next draw, which must be this one, as in the call before."""
        draw, source = next(self._left, (None, None))
        if draw is None or draw[:2] != (kind, key):
            raise NotYetError
        return source

    def seed(self, stage: Stage, unit: Unit) -> None:
        """Seed all for a unit."""
        for draw, source in self._made:
            if source is None:
                continue
            key = draw.key
            own = (*key[:2], stage.first_batch + unit[0], *key[3:]) if key else stage.key_of(unit)
            if isinstance(source, Tensor):
                source.fill_(seed_of(*own))
            else:
                source.manual_seed(seed_of(*own))


def without_batch(key: tuple[int, ...]) -> tuple[int, ...]:
    """Return a key with 0 in place of the number of the batch.

    Example:
        >>> without_batch((7, 1, 25, 3))
        (7, 1, 0, 3)
    """
    return *key[:2], 0, *key[3:]
