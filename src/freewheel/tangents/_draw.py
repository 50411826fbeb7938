"""Drawing tangents by key: reproducible at any time and in any order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from freewheel.stage import seeded_by_key
from freewheel.tangents.distributions import Distribution

Seeded = Callable[[torch.Generator, tuple[int, ...]], torch.Generator]


class Drawer:
    """Draws the tangent of a key, for tensors of one device.

    Every key seeds its own stream: a Mersenne twister on CPUs, torch's Philox generator on GPUs.

    Args:
        distribution: The distribution.
        device: The device of the tensors.
        seeded: Returns a generator that is seeded with a key, usually the one given.

    Example:
        >>> from freewheel.tangents.distributions import Gaussian
        >>> drawer = Drawer(Gaussian(), torch.device("cpu"))
        >>> like = torch.zeros(3)
        >>> first, other = drawer.draw((0, 7), like), drawer.draw((0, 8), like)
        >>> torch.equal(drawer.draw((0, 7), like), first), torch.equal(first, other)
        (True, False)
    """

    def __init__(self, distribution: Distribution, device: torch.device, seeded: Seeded = seeded_by_key) -> None:
        self._distribution, self._device, self._seeded = distribution, device, seeded
        self._generator = torch.Generator(device="cpu" if distribution.on_cpu else device)

    def draw(self, key: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw a new tensor in the shape of `like`."""
        generator = self._seeded(self._generator, key)
        out = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
        return self._distribution.draw(out, generator).to(self._device)
