"""Decoupled backward: `ddg` and `fr`. All stages forward a batch in sequence, then all learn at once, late.

Papers: Huo et al., Decoupled parallel backpropagation (DDG), 2018; Huo et al., Features replay (FR), 2018.

Update of stage k with batch n, applied to the newest weights, version n:

    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · g_{k+1}(n)

`ddg` takes the derivative at the weights of the forward, version n - m_k, with the stored graph; `fr` stores the input
only, and redoes the forward with the newest weights, version n.

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class DDG(Method):
    """Delayed gradients at the forward's weights. The forward lock remains.

    ::

        plan ddg
    """

    name: ClassVar[str] = "ddg"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, forward in turn, weights stashed."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)), turns=True)


@dataclass(frozen=True, kw_only=True)
class FR(Method):
    """Features replay: delayed gradients at the newest weights, by a second forward. The forward lock remains.

    ::

        plan fr
    """

    name: ClassVar[str] = "fr"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, forward in turn, forwards redone."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)), weights="recompute", turns=True)
