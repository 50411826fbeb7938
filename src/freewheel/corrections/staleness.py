"""Step sizes divided by the staleness."""

from __future__ import annotations

import math
from dataclasses import dataclass

from freewheel.corrections._correction import Correction, Site, State, Step


@dataclass(frozen=True)
class StalenessStep(Correction):
    """Divides the step size by the staleness; the division fades out (PipeMare, technique 1).

    lr_k(t) = lr / τ_k^p(t) with p(t) = 1 - min(t / anneal, 1) and τ_k the delay of stage k.

    Args:
        anneal: Updates after which the step is the full one; 0 never divides, `inf` always does.
    """

    anneal: float = math.inf
    credits = ("chain", "forward", "feedback")

    def __post_init__(self) -> None:
        if not self.anneal >= 0:
            raise ValueError(f"anneal={self.anneal}: give a number of updates, 0 or more")

    def applies(self, site: Site) -> bool:
        """A delay of one divides by one."""
        return site.delay > 1

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Scales the step."""
        fade = min(step.number / self.anneal, 1.0) if self.anneal else 1.0
        return step._replace(scale=step.scale * step.site.delay ** -(1.0 - fade)), state
