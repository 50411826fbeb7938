"""The `Distribution` interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

Counted = Callable[[Tensor, Sequence[int]], Tensor]


class Distribution(ABC):
    """A distribution of tangents. E[u·uᵀ] = I makes the forward gradient unbiased.

    Example:
        >>> import freewheel as fw
        >>> class Uniform(fw.Distribution):
        ...     def draw(self, out, generator):
        ...         return out.uniform_(-(3**0.5), 3**0.5, generator=generator)
        >>> fw.AsyncFGD(distribution=Uniform()).pipeline(2).credit.distribution
        Uniform()
    """

    on_cpu: ClassVar[bool] = False  # whether to draw on the CPU for every device, so that all devices agree
    counted: Counted | None = None  # draws inside a compiled kernel, from a seed on the device, in float32

    @abstractmethod
    def draw(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Fill a tensor with random numbers from this generator only, and return it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
