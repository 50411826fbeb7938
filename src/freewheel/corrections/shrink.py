"""Gradient shrinking."""

from __future__ import annotations

from dataclasses import dataclass

from freewheel.corrections._correction import Correction, Gradients, Site, map_gradients


@dataclass(frozen=True)
class Shrink(Correction):
    """Multiplies the received gradient by `beta` before the backward (FDG, eq. 15).

    Stage k of K then learns from β^(K-1-k) times the gradient (eq. 17).

    Args:
        beta: 0 < β ≤ 1.
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise ValueError(f"shrink={self.beta}: the shrinking factor must be above 0 and at most 1")

    def applies(self, site: Site) -> bool:
        """Whether β differs from 1."""
        return self.beta != 1

    def receive(self, site: Site, gradients: Gradients) -> Gradients:
        """Return β·g."""
        return map_gradients(lambda g: g * self.beta, gradients)
