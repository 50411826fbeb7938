"""The corrections of one stage, with their state."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor

from freewheel.corrections._correction import Correction, Gradients, Site, State, Step


class StageCorrections:
    """The corrections that apply to a stage, in order, with their state.

    The state is created on first use, from the weights at the start of training.
    """

    def __init__(self, corrections: Sequence[Correction], site: Site) -> None:
        self._corrections = [c for c in corrections if c.applies(site)]
        self._site = site
        self._number = 0
        self._states: list[State] | None = None

    def __len__(self) -> int:
        return len(self._corrections)

    @property
    def has_state(self) -> bool:
        """Whether a correction has a state for each weight."""
        return any(self._states or ())

    def receive(self, gradients: Gradients) -> Gradients:
        """Transform the gradients from the next stage."""
        for correction in self._corrections:
            gradients = correction.receive(self._site, gradients)
        return gradients

    def backward_weights(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the weights that a backward on the newest ones sees."""
        seen = weights
        for correction, state in zip(self._corrections, self._started(weights)):
            seen = correction.backward_weights(self._site, seen, state)
        return seen

    def update(self, gradients: Gradients, weights: Sequence[Tensor], stale_weights: Sequence[Tensor]) -> Step:
        """Transform an update before the optimizer step."""
        step = Step(self._site, self._number, gradients, weights, stale_weights)
        states = self._started(weights)
        for i, correction in enumerate(self._corrections):
            step, states[i] = correction.update(step, states[i])
        return step

    def updated(self, weights: Sequence[Tensor]) -> None:
        """Advance the state after an optimizer step, made or skipped."""
        states = self._started(weights)
        for i, correction in enumerate(self._corrections):
            states[i] = correction.updated(self._site, weights, states[i])
        self._number += 1

    def _started(self, weights: Sequence[Tensor]) -> list[State]:
        if self._states is None:
            self._states = [correction.init(self._site, weights) for correction in self._corrections]
        return self._states

    def state(self) -> dict[str, Any]:
        """Return the state of all corrections, by reference."""
        return {"number": self._number, "states": self._states}

    def load(self, state: dict[str, Any]) -> None:
        """Restore such a state."""
        self._number, self._states = state["number"], deepcopy(state["states"])
