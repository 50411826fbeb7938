"""Step sizes of the time of the update."""

from __future__ import annotations

from dataclasses import dataclass

from freewheel.corrections._correction import Correction, Site


@dataclass(frozen=True)
class CurrentStepSize(Correction):
    """The step size is that of the batch which the stage forwards in the round, not of the one it learns from.

    With a scheduler that gives batch n the step size γ_n (FDG, eq. 11):

        w_k ← w_k - γ_(n+m_k) · g(n)

    When a `fit` drains, there is no such batch for the last updates; they take the step size after the last batch. The
    next `fit` goes on from there.

    Example:
        >>> import freewheel as fw
        >>> fw.FDG().pipeline(2).corrections, fw.FDG(step_size="gradient").pipeline(2).corrections
        ((Shrink(beta=1.0), CurrentStepSize()), (Shrink(beta=1.0),))
    """

    leads = True
    steady = True

    def applies(self, site: Site) -> bool:
        """Whether the stage is late."""
        return site.delay > 0
