"""The stages of the straggler benchmark: three of equal cost, computing or asleep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from freewheel._naps import Naps

STAGES = 3
CLASSES = 10
ROWS = 8  # samples in a batch of sleeping stages
FORWARD, BACKWARD = 3e-3, 6e-3  # seconds that a batch sleeps at each of them: long beside what running a plan takes
WIDTH, DEPTH, COMPUTED = 384, 6, 64  # of computing stages, and their samples in a batch


class _Asleep(torch.autograd.Function):
    """The identity, which takes a while in both directions; less for a part of a batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, naps: Naps) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps, ctx.part = naps, x.shape[0] / ROWS
        naps.take(FORWARD * ctx.part)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps.take(BACKWARD * ctx.part)
        return gradient, None


class Sleeper(nn.Module):
    """A small layer whose forward and backward take as long as if it were a large one on a device of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(CLASSES, CLASSES)
        self._naps = Naps()

    def forward(self, x: Tensor) -> Tensor:
        """The layer, and a nap."""
        return _Asleep.apply(self.layer(x), self._naps)  # pyright: ignore[reportReturnType]


def stages(*, asleep: bool) -> list[nn.Module]:
    """Three stages, always with the same weights."""
    torch.manual_seed(0)
    if asleep:
        return [Sleeper() for _ in range(STAGES)]
    return [
        nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
        for _ in range(STAGES)
    ]


def batch(*, asleep: bool) -> tuple[Tensor, Tensor]:
    """Random numbers and classes, always the same."""
    generator = torch.Generator().manual_seed(0)
    rows, width = (ROWS, CLASSES) if asleep else (COMPUTED, WIDTH)
    return torch.randn(rows, width, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)
