"""Feedback weights: a function of the seed and the layer, the same on every runtime and for every split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from freewheel._seeds import seed_of
from freewheel.feedback._options import FeedbackOptions

_FEEDBACK = -1  # distinguishes the seeds of feedback weights from all others


class FeedbackWeights:
    """The feedback weights of a stage's layers, drawn on first use.

    They are drawn in float64 on the CPU, so that they are the same for all devices and dtypes.

    Example:
        >>> weights = FeedbackWeights(FeedbackOptions(), seed=0)
        >>> first = weights.of(1, (3, 4), torch.zeros(1))
        >>> again = FeedbackWeights(FeedbackOptions(), seed=0).of(1, (3, 4), torch.zeros(1))
        >>> torch.equal(first, again), bool(first.abs().max() <= (6 / 4) ** 0.5)
        (True, True)
    """

    def __init__(self, options: FeedbackOptions, seed: int) -> None:
        self._options, self._seed = options, seed
        self.drawn: dict[int, Tensor] = {}  # by the number of the layer

    def of(self, layer: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the feedback weights of a layer by its number, on the device and in the dtype of `like`."""
        if layer not in self.drawn:
            own = self._options.own or {}
            weights = own[layer].detach() if layer in own else self._draw(layer, shape)
            if tuple(weights.shape) != tuple(shape):
                raise ValueError(
                    f"own[{layer}] has the shape {tuple(weights.shape)}, but the feedback of layer {layer} has "
                    f"{tuple(shape)}: give weights of that shape, or leave them out"
                )
            self.drawn[layer] = weights.to(like)
        return self.drawn[layer]

    def _draw(self, layer: int, shape: Sequence[int]) -> Tensor:
        bound = self._options.bound
        if bound is None:
            bound = math.sqrt(6 / max(1, math.prod(shape[1:])))
        generator = torch.Generator().manual_seed(seed_of(self._seed, _FEEDBACK, layer))
        return torch.empty(tuple(shape), dtype=torch.float64).uniform_(-bound, bound, generator=generator)
