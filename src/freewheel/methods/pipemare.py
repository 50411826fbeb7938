"""`pipemare`: late gradients at the newest weights, with the forward's stored activations.

Paper: Yang et al., PipeMare: asynchronous pipeline parallel DNN training, 2021.

Weights are not stashed and forwards not recomputed. The backward of stage k with batch n uses the activations of the
forward and the newest weights, corrected towards those of the forward. Two techniques keep it stable:

1. the step size is divided by the staleness at first:  lr_k(t) = lr / m_k^(1 - min(t/anneal, 1));
2. the backward's weights are extrapolated back:  u_k = w_k - m_k·δ_k,  δ_k a decaying mean of the past steps.

    w_k ← w_k - lr_k(t) · ∂h_{k+1}/∂w_k · g_{k+1}(n),    activations of version max(0, n - m_k), weights u_k

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |

The result is not the gradient of the loss at any one set of weights, by design.

    plan pipemare: delays=2,1,0 weights=current batches=4
    time     0     1     2     3      4      5      6      7      8      9      10     11
    stage 0  F0@0  F1@0  F2@0  .      .      B0@0!  F3@1   B1@1!  .      B2@2!  .      B3@3!
    stage 1  .     F0@0  F1@0  .      B0@0!  F2@1   B1@1!  F3@2   B2@2!  .      B3@3!  .
    stage 2  .     .     F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .      .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from freewheel.corrections import Discrepancy, StalenessStep
from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class PipeMare(Method):
    """Late gradients without stashed weights. No lock remains.

    Args:
        anneal: Updates over which the staleness-scaled step grows to the full one; 0 disables the scaling.
        decay: Decay of the discrepancy correction over one delay, between 0 and 1; None disables it.
    """

    name: ClassVar[str] = "pipemare"

    anneal: float = 1000
    decay: float | None = math.exp(-2)

    def __post_init__(self) -> None:
        StalenessStep(self.anneal)
        if self.decay is not None:
            Discrepancy(self.decay)

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, the newest weights, both corrections."""
        return Pipeline(
            title=self.name,
            delays=tuple(range(k - 1, -1, -1)),
            weights="current",
            corrections=[StalenessStep(self.anneal), *([Discrepancy(self.decay)] if self.decay is not None else [])],
        )
