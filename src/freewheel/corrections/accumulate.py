"""Gradient accumulation over batches."""

from __future__ import annotations

from dataclasses import dataclass

from freewheel._errors import whole_number
from freewheel.corrections._correction import Correction, Site, State, Step, map_gradients


@dataclass(frozen=True)
class Accumulate(Correction):
    """One optimizer step per `every` batches, with the mean of their gradients.

    Versions still count batches; between steps they hold the same weights. Gradients accumulated at the end of a `fit`
    carry over to the next one.
    """

    every: int
    credits = ("chain", "forward", "feedback", "local", "synthetic")
    collects = True

    def __post_init__(self) -> None:
        whole_number("every", self.every, least=1)

    def applies(self, site: Site) -> bool:
        """Whether any step is skipped."""
        return self.every > 1

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Skip all steps but every `every`-th."""
        mean = map_gradients(lambda g: g / self.every, step.gradients)
        return step._replace(gradients=mean, skip=step.skip or self.skips(step.number)), state

    def skips(self, number: int) -> bool:
        """Whether this is not the last of `every` batches."""
        return (number + 1) % self.every > 0
