"""Drawing tangents: each belongs to a key, and can be drawn again at any time, in any order, with the same bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.tangents._config import Distribution


class Drawer:
    """Draws the tangent of a key, for tensors of one device.

    Every key starts a stream of its own: on a CPU a Mersenne twister, on a GPU torch's Philox counter. Rademacher
    tangents are taken from the CPU's stream on every device, so that they agree everywhere.

    Example:
        >>> drawer = Drawer("gaussian", torch.device("cpu"))
        >>> like = torch.zeros(3)
        >>> first, other = drawer.draw((0, 7), like), drawer.draw((0, 8), like)
        >>> torch.equal(drawer.draw((0, 7), like), first), torch.equal(first, other)
        (True, False)
    """

    def __init__(self, distribution: Distribution, device: torch.device) -> None:
        self._distribution = distribution
        self._device = device
        self._generator = torch.Generator(device="cpu" if distribution == "rademacher" else device)

    def draw(self, key: tuple[int, ...], like: Tensor) -> Tensor:
        """A fresh tensor in the shape of `like`."""
        generator = self._generator.manual_seed(seed_of(*key))
        if self._distribution == "rademacher":
            return _signs(like.shape, generator).to(self._device, like.dtype)
        out = torch.empty(like.shape, dtype=like.dtype, device=self._device).normal_(generator=generator)
        if self._distribution == "sphere" and out.numel():
            out.mul_(math.sqrt(out.numel()) / torch.linalg.vector_norm(out))
        return out


def _signs(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """±1 for each element, 32 of them out of each number drawn."""
    count = shape.numel()
    words = torch.empty((count + 31) // 32, dtype=torch.int32)
    words.random_(-(2**31), 2**31, generator=generator)
    bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
    return (bits.view(-1)[:count] * 2 - 1).view(shape)
