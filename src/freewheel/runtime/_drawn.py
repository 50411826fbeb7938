"""The random numbers of captured functions: a generator for each key, seeded before every replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from freewheel._seeds import seed_of
from freewheel.plan import Unit
from freewheel.stage import SeededDraws, Stage

UNIT: tuple[int, ...] = ()  # the key of a unit's own random numbers
Key = tuple[int, ...] | None  # with 0 in place of the batch; None: nothing is drawn


class MismatchError(Exception):
    """A function draws other random numbers than when it was called before it was captured."""


class KeyRecorder:
    """The keys of the random numbers that a function draws, in order."""

    def __init__(self) -> None:
        self._found: list[SeededDraws | tuple[int, ...]] = []

    def add(self, found: SeededDraws | tuple[int, ...]) -> None:
        """Add a context of the unit's own random numbers, or a key."""
        self._found.append(found if isinstance(found, SeededDraws) else without_batch(found))

    def keys(self) -> list[Key]:
        """Return the keys, once the function has returned."""
        return [(UNIT if each.used else None) if isinstance(each, SeededDraws) else each for each in self._found]


class Generators:
    """The generators of a captured function.

    Args:
        keys: The keys of what it draws, in order.
        graph: The graph that it will be captured as.
        device: The device.
    """

    def __init__(self, keys: Sequence[Key], graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._keys = keys
        self._made = [None if key is None else torch.Generator(device) for key in keys]
        self._left = iter(zip(keys, self._made))
        for generator in self._made:
            if generator is not None:
                graph.register_generator_state(generator)

    def of_unit(self) -> torch.Generator | None:
        """Return the generator of the next context."""
        key, generator = next(self._left, (None, None))
        if key:
            raise MismatchError
        return generator

    def of_key(self, key: tuple[int, ...]) -> torch.Generator:
        """Return the generator of a key."""
        expected, generator = next(self._left, (None, None))
        if generator is None or expected != without_batch(key):
            raise MismatchError
        return generator

    def seed(self, stage: Stage, unit: Unit) -> None:
        """Seed all for a unit."""
        own = seed_of(*stage.key_of(unit))
        for key, generator in zip(self._keys, self._made):
            if generator is not None:
                generator.manual_seed(seed_of(*key[:2], stage.first_batch + unit[0], *key[3:]) if key else own)

    def __bool__(self) -> bool:
        return any(generator is not None for generator in self._made)


def without_batch(key: tuple[int, ...]) -> tuple[int, ...]:
    """Return a key with 0 in place of the number of the batch.

    Example:
        >>> without_batch((7, 1, 25, 3))
        (7, 1, 0, 3)
    """
    return *key[:2], 0, *key[3:]
