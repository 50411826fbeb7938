"""The corrections of one stage, with their state."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from freewheel.corrections._correction import Correction, Gradients, Site, State, Step


class StageCorrections:
    """The corrections that apply to a stage, in order, with their state.

    The state is created on first use, from the weights at the start of training.
    """

    def __init__(self, corrections: Sequence[Correction], site: Site) -> None:
        self._corrections = [c for c in corrections if c.applies(site)]
        self._site = site
        self._number = 0
        self.leads = any(c.leads for c in self._corrections)
        self.ahead = 0  # how many batches the step size is ahead of the updates, where a correction leads
        self._states: list[State] | None = None
        self.fixed = False  # whether the tensors of the state keep their places in memory

    @property
    def steady(self) -> bool:
        """Whether every update is the same function of tensors."""
        return all(c.steady or type(c).update is Correction.update for c in self._corrections)

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
            step, state = correction.update(step, states[i])
            states[i] = self._next(states[i], state)
            if self.leads and step.skip and not any(c.skips(self._number) for c in self._corrections):
                raise ValueError(
                    f"{type(correction).__name__} skips a step that its method `skips` does not tell of, beside a "
                    "correction that leads: define it, or leave CurrentStepSize out (fw.FDG(step_size='gradient'))"
                )
        return step

    def updated(self, weights: Sequence[Tensor]) -> None:
        """Advance the state after an optimizer step, made or skipped."""
        states = self._started(weights)
        for i, correction in enumerate(self._corrections):
            states[i] = self._next(states[i], correction.updated(self._site, weights, states[i]))

    def count(self) -> None:
        """Count an update, made or skipped."""
        self._number += 1
        self.ahead -= self.leads

    def lead(self) -> bool:
        """Let the step size go on by a batch; return whether the update of that batch makes a step."""
        number = self._number + self.ahead
        self.ahead += 1
        return not any(c.skips(number) for c in self._corrections)

    def _next(self, state: State, following: State) -> State:
        """Return the following state; with `fixed`, it is copied to the place of the state."""
        if not self.fixed or following is state:
            return following
        for place, value in zip(tree_leaves(state), tree_leaves(following), strict=True):
            if place is not value:
                place.copy_(value)
        return state

    def _started(self, weights: Sequence[Tensor]) -> list[State]:
        if self._states is None:
            self._states = [correction.init(self._site, weights) for correction in self._corrections]
        return self._states

    def state(self) -> dict[str, Any]:
        """Return the state of all corrections, by reference."""
        return {"number": self._number, "states": self._states, "ahead": self.ahead}

    def load(self, state: dict[str, Any]) -> None:
        """Restore such a state."""
        self._number, self._states = state["number"], deepcopy(state["states"])
        self.ahead = state.get("ahead", 0)  # earlier checkpoints do not have it
