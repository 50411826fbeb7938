"""Tangents that are drawn inside compiled kernels, from seeds on the device: wherever needed, and never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from freewheel.stage import Launcher, NotYetError
from freewheel.tangents._compiled import compiled_function
from freewheel.tangents._options import TangentOptions
from freewheel.tangents.distributions import find_distribution

if TYPE_CHECKING:
    from freewheel.tangents._directions import PendingBatch, Tangents


class CountedTangents:
    """Draws the tangents of a stage's parameters in functions that are traced.

    Args:
        tangents: The user's options.
        key: The seed and the stage's number.
        parameters: The stage's parameters.
        padding: The untrained row of an embedding, by the parameter's index.
        device: The stage's device.
        launcher: Returns the stage's launcher.
    """

    def __init__(
        self,
        tangents: TangentOptions,
        key: tuple[int, int],
        parameters: Sequence[nn.Parameter],
        padding: Mapping[int, int],
        device: torch.device,
        launcher: Callable[[], Launcher],
    ) -> None:
        self._distribution, self._count = find_distribution(tangents.distribution), tangents.tangents
        self._key, self._parameters, self._padding = key, parameters, padding
        self._device, self._launcher = device, launcher
        self._scales: dict[tuple[float, ...], Tensor] = {}
        self._compiled: dict[Any, Callable[..., list[Tensor]]] = {}  # by parameters, and whether there is a scale

    def given(self, pending: PendingBatch, which: int) -> list[Tensor]:
        """Return what the tangents of a batch are drawn from: a seed for each, and the scale of all parameters.

        `which` is the replica, or the micro-batch with tangents of its own. There is no scale if it is 1 wherever it is
        not 0.
        """
        if which not in pending.passed.seeds:
            keys = [(*self._key, pending.batch, which, p) for p in range(self._count)]
            pending.passed.seeds[which] = [self._launcher().seed(self._device, key) for key in keys]
        seeds, scale = pending.passed.seeds[which], pending.alphas
        if not set(scale) - {0.0, 1.0}:
            return seeds
        if scale not in self._scales:
            self._check_not_captured()
            self._scales[scale] = torch.tensor(scale, device=self._device)
        return [*seeds, self._scales[scale]]

    def drawer(self, indexes: Sequence[int]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Return the function that draws the stacked tangents of parameters."""
        count = self._count
        return lambda given: [self.draw(given[:count], given[count] if given[count:] else None, i) for i in indexes]

    def draw_all(self, pending: PendingBatch, which: Sequence[int]) -> Tangents:
        """Draw the tangents of all parameters into memory."""
        trained = tuple(i for i, alpha in enumerate(pending.alphas) if alpha)
        out: Tangents = {}
        for number in which:
            given = self.given(pending, number)
            key = trained, len(given)
            if key not in self._compiled:
                self._check_not_captured()
                self._compiled[key] = compiled_function(self.drawer(trained), given)
            drawn = dict(zip(trained, self._compiled[key](given)))
            out |= {(number, p): {i: us[p] for i, us in drawn.items()} for p in range(self._count)}
        return out

    def _check_not_captured(self) -> None:
        """Leave copies from the host and compiling to a call that is not captured: a graph cannot have them."""
        if self._launcher().captures:
            raise NotYetError

    def draw(self, seeds: Sequence[Tensor], scale: Tensor | None, index: int) -> Tensor:
        """Draw the tangents of a parameter, stacked."""
        weight, counted = self._parameters[index], self._distribution.counted
        assert counted is not None
        us = torch.stack([counted(seed + index, weight.shape).to(weight.dtype) for seed in seeds])
        if index in self._padding:
            rows = torch.arange(weight.shape[0], device=us.device) != self._padding[index] % weight.shape[0]
            us = us * rows.view(-1, *[1] * (weight.dim() - 1))
        return us if scale is None else us * scale[index].to(us.dtype)
