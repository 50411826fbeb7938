"""The `Correction` interface: frozen options and pure functions over tensors with explicit state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

Gradients = Sequence[Tensor | None]  # None for an unused weight
State = dict[str, Any]  # nested lists and dicts of tensors


class Site(NamedTuple):
    """The stage that a correction works at, the number of stages, and the stage's delay."""

    stage: int
    stages: int
    delay: int


class Step(NamedTuple):
    """One update between the backward and the optimizer step.

    Args:
        site: The stage.
        number: The number of earlier updates of this stage.
        gradients: One per weight.
        weights: The newest weights, which the optimizer is about to change.
        stale_weights: The weights that the gradients were taken at.
        scale: A factor on the step size.
        skip: Whether to accumulate these gradients without an optimizer step.
    """

    site: Site
    number: int
    gradients: Gradients
    weights: Sequence[Tensor]
    stale_weights: Sequence[Tensor]
    scale: float = 1.0
    skip: bool = False


class Correction:
    """A transform of the gradient or the step. Subclasses are frozen dataclasses that override what they need.

    All methods are pure: state lives in the dict that `init` creates and `update` returns, never on `self`, so
    checkpoints include it automatically.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch, freewheel as fw
        >>> @dataclass(frozen=True)
        ... class HeavyBall(fw.Correction):
        ...     decay: float = 0.9
        ...
        ...     def init(self, site, weights):
        ...         return {"velocity": [torch.zeros_like(w) for w in weights]}
        ...
        ...     def update(self, step, state):
        ...         ball = [v if g is None else self.decay * v + g for g, v in zip(step.gradients, state["velocity"])]
        ...         found = fw.map_gradients(lambda g, v: v, step.gradients, ball)  # None stays None
        ...         return step._replace(gradients=found), {"velocity": ball}
        >>> fw.Pipeline(delays=(1, 0), corrections=[HeavyBall()]).corrections
        (HeavyBall(decay=0.9),)
    """

    credits: ClassVar[tuple[str, ...]] = ("chain",)  # supported families of credit
    weights: ClassVar[tuple[str, ...]] = ()  # supported values of `weights`; empty for all
    collects: ClassVar[bool] = False  # whether it skips optimizer steps
    steady: ClassVar[bool] = False  # whether `update` never skips and does not depend on `step.number`
    leads: ClassVar[bool] = False  # whether the step size is that of the batch that the stage forwards

    def applies(self, site: Site) -> bool:
        """Whether this stage needs the correction."""
        return True

    def init(self, site: Site, weights: Sequence[Tensor]) -> State:
        """Return the state before the first update."""
        return {}

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Transform an update before the optimizer step, and return the new state."""
        return step, state

    def skips(self, number: int) -> bool:
        """Whether `update` skips the step of this update; needed beside a correction that `leads`."""
        return False

    def updated(self, site: Site, weights: Sequence[Tensor], state: State) -> State:
        """Return the state after the optimizer step; `weights` are the new ones."""
        return state

    def receive(self, site: Site, gradients: Gradients) -> Gradients:
        """Transform the gradients from the next stage before the backward."""
        return gradients

    def backward_weights(self, site: Site, weights: Sequence[Tensor], state: State) -> Sequence[Tensor]:
        """Return the weights that a backward under `weights="current"` sees."""
        return weights


def map_gradients(function: Callable[..., Tensor], gradients: Gradients, *others: Sequence[Any]) -> list[Tensor | None]:
    """Apply a function to each gradient and the matching elements of `others`; None stays None.

    Example:
        >>> import torch
        >>> map_gradients(lambda g, w: g + w, [torch.ones(1), None], [torch.ones(1), torch.ones(1)])
        [tensor([2.]), None]
    """
    return [None if g is None else function(g, *rest) for g, *rest in zip(gradients, *others, strict=True)]
