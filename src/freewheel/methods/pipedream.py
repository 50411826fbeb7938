"""`pipedream`: the least delay that keeps every stage busy.

Paper: Narayanan et al., PipeDream: generalized pipeline parallelism for DNN training, 2019.

Stage k admits K-k forwards, then alternates. Update of stage k with batch n, applied to the newest weights:

    w_k ← w_k - lr · ∂h_{k+1}/∂w_k · g_{k+1}(n),    the derivative at version max(0, n - m_k), that of the forward

| stage | 0   | … | k     | … | K-1 |
| m_k   | K-1 | … | K-1-k | … | 0   |

The weights after any number of batches are those of `ddg`; only the waiting differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.methods._method import Method, Pipeline


@dataclass(frozen=True, kw_only=True)
class PipeDream(Method):
    """Delayed gradients at the forward's weights, one forward and one backward in turn. No lock remains.

    ::

        plan pipedream
    """

    name: ClassVar[str] = "pipedream"

    def pipeline(self, k: int) -> Pipeline:
        """Delays K-1-k, weights stashed."""
        return Pipeline(title=self.name, delays=tuple(range(k - 1, -1, -1)))
