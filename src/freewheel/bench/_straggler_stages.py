"""The stages of the straggler benchmark: three of equal cost, computing or sleeping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from freewheel._naps import Naps

STAGES = 3
CLASSES = 10
ROWS = 8  # samples in a batch of sleeping stages
FORWARD, BACKWARD = 3e-3, 6e-3  # seconds of sleep per batch: long compared with running the plan
WIDTH, DEPTH, COMPUTED = 384, 6, 64  # of computing stages, and the samples in their batches


class _Asleep(torch.autograd.Function):
    """The identity, with a sleep in both directions in proportion to the samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, naps: Naps) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps, ctx.share = naps, x.shape[0] / ROWS
        naps.take(FORWARD * ctx.share)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps.take(BACKWARD * ctx.share)
        return gradient, None


class Sleeper(nn.Module):
    """A small layer that takes as long as a large one on its own device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(CLASSES, CLASSES)
        self._naps = Naps()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, and sleep."""
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
