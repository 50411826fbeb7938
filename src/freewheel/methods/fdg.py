"""`fdg`: fully decoupled learning with delayed, shrunk gradients.

Paper: Zhuang et al., Fully decoupled neural network learning using delayed gradients, 2019.

In every round each stage learns from the gradient and forwards the activation that it received after the previous
round. Update of stage k with batch n, applied to the newest weights (eq. 11, 15 and 17; stages counted from 0 here,
from 1 in the paper):

    w_k ← w_k - γ · β^(K-1-k) · ∂h_{k+1}/∂w_k · g_{k+1}(n),    the derivative at the weights of the forward

γ is the step size of the time of the update, γ_(n+m_k): that of the batch which the stage forwards in the same round.

| stage | 0      | … | k        | … | K-1 |
| m_k   | 2(K-1) | … | 2(K-1-k) | … | 0   |

A round starts with the backward (slightly better in the paper's appendix A) or the forward. Figure 1 of the paper:

    plan fdg: delays=4,2,0 order=backward cell=round batches=6
    time     0     1     2           3           4           5           6           7           8      9
    stage 0  F0@0  F1@0  F2@0        F3@0        B0@0! F4@1  B1@0! F5@2  B2@0!       B3@0!       B4@1!  B5@2!
    stage 1  .     F0@0  F1@0        B0@0! F2@1  B1@0! F3@2  B2@1! F4@3  B3@2! F5@4  B4@3!       B5@4!  .
    stage 2  .     .     F0@0 B0@0!  F1@1 B1@1!  F2@2 B2@2!  F3@3 B3@3!  F4@4 B4@4!  F5@5 B5@5!  .      .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from freewheel._errors import one_of
from freewheel.corrections import Correction, CurrentStepSize, Shrink
from freewheel.methods._method import Method, Pipeline
from freewheel.plan import ORDERS, Order


@dataclass(frozen=True, kw_only=True)
class FDG(Method):
    """Delayed gradients with shrinking. No lock remains.

    Args:
        shrink: The shrinking factor β, above 0 and at most 1; 1 does not shrink.
        order: What a round starts with, `backward` or `forward`.
        step_size: With a scheduler, whose step size an update takes: that of the batch forwarded at the time of the
            `update` (eq. 11), or of the batch that the `gradient` belongs to, as in all other methods.
    """

    name: ClassVar[str] = "fdg"

    shrink: float = 1.0
    order: Order = "backward"
    step_size: Literal["update", "gradient"] = "update"

    def __post_init__(self) -> None:
        Shrink(self.shrink)
        one_of("order", self.order, ORDERS)
        one_of("step_size", self.step_size, ("update", "gradient"))

    def pipeline(self, k: int) -> Pipeline:
        """Delays 2(K-1-k), weights stashed, gradients shrunk."""
        corrections: list[Correction] = [Shrink(self.shrink)]
        if self.step_size == "update":
            corrections.append(CurrentStepSize())
        return Pipeline(
            title=self.name,
            delays=tuple(2 * (k - 1 - i) for i in range(k)),
            order=self.order,
            corrections=corrections,
            cell="round",
        )
