"""Decoupled backward: `ddg` and `fr`. All stages forward a batch in sequence, then run their backwards in parallel.

Papers: Huo et al., Decoupled parallel backpropagation (DDG), 2018; Huo et al., Features replay (FR), 2018.

Update of stage k with batch n, applied to the newest weights, version n:

    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · g_{k+1}(n)

`ddg` takes the derivative at the weights of the forward, version n - m_k, with the stored graph; `fr` stores only the
input and recomputes the forward with the newest weights, version n.

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |

    plan ddg: delays=2,1,0 turns=yes batches=3
    time     0     1     2     3      4     5     6      7     8     9      10     11
    stage 0  F0@0  .     .     F1@0   .     .     F2@0   .     .     B0@0!  B1@0!  B2@0!
    stage 1  .     F0@0  .     .      F1@0  .     B0@0!  F2@1  .     B1@0!  B2@1!  .
    stage 2  .     .     F0@0  B0@0!  .     F1@1  B1@1!  .     F2@2  B2@2!  .      .

    plan fr: delays=2,1,0 weights=recompute turns=yes batches=3
    time     0     1     2     3      4     5     6      7      8     9     10     11     12    13     14    15
    stage 0  F0@0  .     .     F1@0   .     .     F2@0   .      .     .     R0@0   B0@0!  R1@1  B1@1!  R2@2  B2@2!
    stage 1  .     F0@0  .     .      F1@0  .     R0@0   B0@0!  F2@1  .     R1@1   B1@1!  R2@2  B2@2!  .     .
    stage 2  .     .     F0@0  B0@0!  .     F1@1  B1@1!  .      .     F2@2  B2@2!  .      .     .      .     .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class DDG(Method):
    """Delayed gradients at the forward's weights. The forward lock remains."""

    name: ClassVar[str] = "ddg"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, forward in turn, weights stashed."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)), turns=True)


@dataclass(frozen=True, kw_only=True)
class FR(Method):
    """Features replay: delayed gradients at the newest weights, by a second forward. The forward lock remains."""

    name: ClassVar[str] = "fr"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, forward in turn, forwards recomputed."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)), weights="recompute", turns=True)
