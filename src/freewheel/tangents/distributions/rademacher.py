"""±1."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from freewheel.tangents.distributions._counted import uniform
from freewheel.tangents.distributions._distribution import Distribution


class Rademacher(Distribution):
    """Independent signs: the smallest variance of the estimate with independent elements."""

    on_cpu: ClassVar[bool] = True

    def draw(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Draw ±1 for each element, 32 per random word."""
        count = out.numel()
        words = torch.empty((count + 31) // 32, dtype=torch.int32)
        words.random_(-(2**31), 2**31, generator=generator)
        bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
        return out.copy_((bits.view(-1)[:count] * 2 - 1).view(out.shape))

    @staticmethod
    def counted(seed: Tensor, shape: Sequence[int]) -> Tensor:
        """Draw ±1 by the half in which a uniform element lies."""
        return torch.where(uniform(seed, shape) < 0.5, -1.0, 1.0)
