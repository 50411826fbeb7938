"""Who calls the computations of a stage: forwards, recomputations, backwards and optimizer steps.

A stage passes each of them to its launcher as a function of tensors. The usual launcher calls the function. That of the
`graph` runtime captures it as a CUDA graph once for every slot, and replays it for later batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.plan import Unit
from freewheel.stage._random import SeededDraws
from freewheel.stage._state import scaled

T = TypeVar("T")


def seeded_by_key(generator: torch.Generator, key: tuple[int, ...]) -> torch.Generator:
    """Seed a generator with a key."""
    return generator.manual_seed(seed_of(*key))


class NotYetError(Exception):
    """Raised by a function that cannot be captured in this call, but maybe after the next one."""


class Launcher:
    """Calls each computation.

    Example:
        >>> Launcher()("forward", (3, 0), lambda unit, scale, x: scale * x, 2, fed=[5])
        10
    """

    fixed = False  # whether tensors keep their places in memory from batch to batch
    captures = False  # whether a function is being called only to be recorded
    warms_up = False  # whether a function is being called only to be called again

    def __call__(
        self, name: str, unit: Unit, function: Callable[..., T], *arguments: Any, fed: Sequence[Any] = ()
    ) -> T:
        """Call a function of the unit, the arguments, and what the loader or other stages have fed."""
        return function(unit, *arguments, *fed)

    def kept(self, tensor: Tensor) -> Tensor:
        """Return a result that is to be kept, after the next batches too."""
        return tensor

    def draws(self, *key: int) -> SeededDraws:
        """Return the random numbers of a key."""
        return SeededDraws(*key)

    def seeded(self, generator: torch.Generator, key: tuple[int, ...]) -> torch.Generator:
        """Seed a generator with a key: the run's seed, the stage, the batch, and more."""
        return seeded_by_key(generator, key)

    def seed(self, device: torch.device, key: tuple[int, ...]) -> Tensor:
        """Return the seed of a key, on the device."""
        return torch.tensor(seed_of(*key), device=device)

    def sized(self, optimizer: torch.optim.Optimizer, scale: float) -> AbstractContextManager[None]:
        """Scale the step size of an optimizer inside the context."""
        return scaled(optimizer, scale)
