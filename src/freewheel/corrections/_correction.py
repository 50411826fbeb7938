"""What a correction is: frozen options, and pure functions over tensors with explicit state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

Gradients = Sequence[Tensor | None]  # None for a weight that took no part
State = dict[str, Any]  # nested lists and dicts of tensors


class Site(NamedTuple):
    """Where a correction works: the stage, the number of stages, and the delay of this one."""

    stage: int
    stages: int
    delay: int


class Step(NamedTuple):
    """One update on its way from the gradients to the optimizer.

    Args:
        site: The stage.
        number: The updates that the corrections of this stage have seen before this one.
        gradients: One per weight.
        weights: The newest weights, which the optimizer is about to change.
        stale_weights: The weights that the gradients were taken at.
        scale: The factor on the step size.
        skip: Whether to collect these gradients and leave the weights alone.
    """

    site: Site
    number: int
    gradients: Gradients
    weights: Sequence[Tensor]
    stale_weights: Sequence[Tensor]
    scale: float = 1.0
    skip: bool = False


class Correction:
    """A transform of the gradient or of the step.

    Subclasses are frozen dataclasses that override what they need. None of the functions keeps anything on `self`: what
    a correction remembers is the state that `init` makes and `update` returns. So checkpoints hold it without any help.

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
        ...         ball = fw.map_gradients(lambda g, v: self.decay * v + g, step.gradients, state["velocity"])
        ...         return step._replace(gradients=ball), {"velocity": ball}
        >>> fw.Pipeline(delays=(1, 0), corrections=[HeavyBall()]).corrections
        (HeavyBall(decay=0.9),)
    """

    credits: ClassVar[tuple[str, ...]] = ("chain",)  # the families of credit that it works with
    weights: ClassVar[tuple[str, ...]] = ()  # the values of `weights` that it works with; empty for any
    collects: ClassVar[bool] = False  # whether it skips updates

    def applies(self, site: Site) -> bool:
        """Whether this stage needs the correction at all."""
        return True

    def init(self, site: Site, weights: Sequence[Tensor]) -> State:
        """Returns the state before the first update."""
        return {}

    def update(self, step: Step, state: State) -> tuple[Step, State]:
        """Transforms an update before the optimizer makes it."""
        return step, state

    def updated(self, site: Site, weights: Sequence[Tensor], state: State) -> State:
        """Returns the state after the update; `weights` are the new ones."""
        return state

    def receive(self, site: Site, gradients: Gradients) -> Gradients:
        """Transforms the gradients from the next stage before they are backpropagated here."""
        return gradients

    def backward_weights(self, site: Site, weights: Sequence[Tensor], state: State) -> Sequence[Tensor]:
        """Returns the weights that a backward under `weights="current"` sees."""
        return weights


def map_gradients(function: Callable[..., Tensor], gradients: Gradients, *others: Sequence[Any]) -> list[Tensor | None]:
    """Applies a function to each gradient and what belongs to it; None stays None.

    Example:
        >>> import torch
        >>> map_gradients(lambda g, w: g + w, [torch.ones(1), None], [torch.ones(1), torch.ones(1)])
        [tensor([2.]), None]
    """
    return [None if g is None else function(g, *rest) for g, *rest in zip(gradients, *others, strict=True)]
