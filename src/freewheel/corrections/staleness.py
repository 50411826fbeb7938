"""Step sizes divided by the staleness."""

from __future__ import annotations

import math
from dataclasses import dataclass

from freewheel.corrections._correction import Correction, Site, State, Step


@dataclass(frozen=True)
class StalenessStep(Correction):
    """Divides the step size by the staleness, with annealing (PipeMare, technique 1).

    lr_k(t) = lr / τ_k^p(t) with p(t) = 1 - min(t / anneal, 1) and τ_k the delay of stage k.

    Args:
        anneal: Updates until the full step size; 0 never divides, `inf` always does.
    """

    anneal: float = math.inf
    credits = ("chain", "forward", "feedback")

    def __post_init__(self) -> None:
        if not self.anneal >= 0:
            raise ValueError(f"anneal={self.anneal}: give a number of updates, 0 or more")

    def applies(self, site: Site) -> bool:
        """Whether the delay is above 1."""
        return site.delay > 1

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Scale the step."""
        fade = min(step.number / self.anneal, 1.0) if self.anneal else 1.0
        return step._replace(scale=step.scale * step.site.delay ** -(1.0 - fade)), state
