"""Discrepancy correction: an estimate of the forward's weights in the backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freewheel.corrections._correction import Correction, Site, State


@dataclass(frozen=True)
class Discrepancy(Correction):
    """Extrapolates the backward's weights back to those of the forward (PipeMare, technique 2).

    u = w - τ_k·δ, with δ ← γ·δ + (1 - γ)·(w_new - w_old) and γ = decay^(1/τ_k).

    Args:
        decay: 0 < decay < 1; e^-2 as in the paper by default.
    """

    decay: float = math.exp(-2)
    weights = ("current",)

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"decay={self.decay}: the decay must lie between 0 and 1")

    def applies(self, site: Site) -> bool:
        """Whether the stage is late."""
        return site.delay > 0

    def init(self, site: Site, weights: Sequence[Tensor]) -> State:
        """Return the weights and zero drift."""
        return {"before": [w.detach().clone() for w in weights], "drift": [torch.zeros_like(w) for w in weights]}

    def backward_weights(self, site: Site, weights: Sequence[Tensor], state: State) -> Sequence[Tensor]:
        """Return u = w - τ·δ."""
        return [w - site.delay * drift for w, drift in zip(weights, state["drift"])]

    def updated(self, site: Site, weights: Sequence[Tensor], state: State) -> State:
        """Update the drift, in place."""
        gamma = self.decay ** (1 / site.delay)
        for w, before, drift in zip(weights, state["before"], state["drift"]):
            drift.mul_(gamma).add_(w - before, alpha=1 - gamma)
            before.copy_(w)
        return state
