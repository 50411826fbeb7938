"""`pipedream`: the smallest delays that keep every stage busy.

Paper: Narayanan et al., PipeDream: generalized pipeline parallelism for DNN training, 2019.

Stage k runs K-k forwards, then alternates. Update of stage k with batch n, applied to the newest weights:

    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · g_{k+1}(n),    the derivative at version max(0, n - m_k), that of the forward

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |

The weights after any number of batches are those of `ddg`; only the timing differs.

    plan pipedream: delays=2,1,0 batches=4
    time     0     1     2     3      4      5      6      7      8      9      10     11
    stage 0  F0@0  F1@0  F2@0  .      .      B0@0!  F3@1   B1@0!  .      B2@0!  .      B3@1!
    stage 1  .     F0@0  F1@0  .      B0@0!  F2@1   B1@0!  F3@2   B2@1!  .      B3@2!  .
    stage 2  .     .     F0@0  B0@0!  F1@1   B1@1!  F2@2   B2@2!  F3@3   B3@3!  .      .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class PipeDream(Method):
    """Delayed gradients at the forward's weights, one forward and one backward in turn. No lock remains."""

    name: ClassVar[str] = "pipedream"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, weights stashed."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)))
