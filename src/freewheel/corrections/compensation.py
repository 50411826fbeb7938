"""First-order delay compensation."""

from __future__ import annotations

from dataclasses import dataclass

from freewheel.corrections._correction import Correction, Site, State, Step, map_gradients


@dataclass(frozen=True)
class DelayCompensation(Correction):
    """Corrects a late gradient to first order: g + λ·g⊙g⊙(w_now - w_then) (DC-ASGD, Zheng et al., 2017).

    Args:
        strength: λ ≥ 0.
    """

    strength: float = 0.04
    weights = ("stash", "predict")
    steady = True

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"strength={self.strength}: the compensation needs a strength of 0 or more")

    def applies(self, site: Site) -> bool:
        """Whether the stage is late."""
        return site.delay > 0 and self.strength > 0

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Compensate the gradients."""
        drift = [now - then for now, then in zip(step.weights, step.stale_weights)]
        found = map_gradients(lambda g, d: g + self.strength * g * g * d, step.gradients, drift)
        return step._replace(gradients=found), state
