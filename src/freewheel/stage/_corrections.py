"""Corrections: transforms of the gradient or of the step, each a few lines; they compose in the order given.

A correction is frozen configuration. `attach` makes the `Hooks` of one stage, which hold what it remembers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

Gradients = Sequence[Tensor | None]


class Site(NamedTuple):
    """Where a correction is attached: the stage, how many there are, and its delay."""

    stage: int
    stages: int
    delay: int


class Hooks:
    """What a correction does at one stage; by default nothing."""

    def receive(self, gradients: Gradients) -> Gradients:
        """The gradients from the next stage, before they are backpropagated here."""
        return gradients

    def gradient(self, gradients: Gradients, weights: Sequence[Tensor], then: Sequence[Tensor]) -> Gradients:
        """A batch's gradients by the weights; `then` are the weights that they were taken at."""
        return gradients

    def skips(self) -> bool:
        """Whether this update only collects the gradient and leaves the weights as they are."""
        return False

    def scale(self) -> float:
        """The factor on the step size of this update."""
        return 1.0

    def corrected(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The weights that a backward under `weights='current'` sees."""
        return weights

    def updated(self, weights: Sequence[Tensor]) -> None:
        """An update has been made."""

    def state(self) -> dict[str, object]:
        """What it remembers between updates."""
        return {}

    def load(self, state: dict[str, object]) -> None:
        """Goes back to a remembered state."""


class Correction(ABC):
    """A transform of the gradient or of the step."""

    weights: ClassVar[tuple[str, ...]] = ()  # the values of `weights` that it makes sense with; none means any
    credits: ClassVar[tuple[str, ...]] = ("chain",)  # the values of `credit` that it makes sense with

    @abstractmethod
    def attach(self, site: Site) -> Hooks:
        """The hooks for one stage."""


@dataclass(frozen=True)
class Shrink(Correction):
    """Gradient shrinking (FDG, eq. 15): what a stage receives is multiplied by `beta` before it goes back.

    Stage k of K then learns from β^(K-1-k) times the gradient (eq. 17).

    Args:
        beta: 0 < β ≤ 1.
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise ValueError(f"shrink={self.beta}: the shrinking factor must be above 0 and at most 1")

    def attach(self, site: Site) -> Hooks:
        """Shrinks what arrives; with β = 1 it does nothing at all."""
        return _Shrink(self.beta) if self.beta != 1 else Hooks()


class _Shrink(Hooks):
    def __init__(self, beta: float) -> None:
        self.beta = beta

    def receive(self, gradients: Gradients) -> Gradients:
        return [None if g is None else g * self.beta for g in gradients]


@dataclass(frozen=True)
class StalenessStep(Correction):
    """The step size divided by the staleness, the division fading out (PipeMare, technique 1).

    lr_k(t) = lr / τ_k^p(t) with p(t) = 1 - min(t / anneal, 1) and τ_k the delay of stage k.

    Args:
        anneal: Updates after which the step is the full one; 0 never divides, `inf` always does.
    """

    anneal: float = math.inf
    credits = ("chain", "forward", "feedback")

    def __post_init__(self) -> None:
        if not self.anneal >= 0:
            raise ValueError(f"anneal={self.anneal}: give a number of updates, 0 or more")

    def attach(self, site: Site) -> Hooks:
        """Scales the step of a stage whose delay is above one."""
        return _StalenessStep(site.delay, self.anneal) if site.delay > 1 else Hooks()


class _StalenessStep(Hooks):
    def __init__(self, delay: int, anneal: float) -> None:
        self.delay, self.anneal, self.count = delay, anneal, 0

    def scale(self) -> float:
        fade = min(self.count / self.anneal, 1.0) if self.anneal else 1.0
        return self.delay ** -(1.0 - fade)

    def updated(self, weights: Sequence[Tensor]) -> None:
        self.count += 1

    def state(self) -> dict[str, object]:
        return {"count": self.count}

    def load(self, state: dict[str, object]) -> None:
        self.count = int(state["count"])  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Discrepancy(Correction):
    """The backward's weights moved back to where the forward's probably were (PipeMare, technique 2).

    u = w - τ_k·δ, with δ ← γ·δ + (1 - γ)·(w_new - w_old) and γ = decay^(1/τ_k).

    Args:
        decay: 0 < decay < 1; e^-2 as in the paper by default.
    """

    decay: float = math.exp(-2)
    weights = ("current",)

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"decay={self.decay}: the decay must lie between 0 and 1")

    def attach(self, site: Site) -> Hooks:
        """Corrects a late stage."""
        return _Discrepancy(site.delay, self.decay) if site.delay else Hooks()


class _Discrepancy(Hooks):
    def __init__(self, delay: int, decay: float) -> None:
        self.delay, self.gamma = delay, decay ** (1 / delay)
        self.before: list[Tensor] = []
        self.drift: list[Tensor] = []

    def corrected(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.drift:
            self._start(weights)
            return weights
        return [w - self.delay * d for w, d in zip(weights, self.drift)]

    def updated(self, weights: Sequence[Tensor]) -> None:
        if not self.drift:
            return
        for w, before, drift in zip(weights, self.before, self.drift):
            drift.mul_(self.gamma).add_(w - before, alpha=1 - self.gamma)
            before.copy_(w)

    def _start(self, weights: Sequence[Tensor]) -> None:
        self.before = [w.detach().clone() for w in weights]
        self.drift = [torch.zeros_like(w) for w in weights]

    def state(self) -> dict[str, object]:
        return {"before": [t.clone() for t in self.before], "drift": [t.clone() for t in self.drift]}

    def load(self, state: dict[str, object]) -> None:
        self.before, self.drift = list(state["before"]), list(state["drift"])  # pyright: ignore


@dataclass(frozen=True)
class DelayCompensation(Correction):
    """First-order compensation of the delay (DC-ASGD, Zheng et al., 2017): g + λ·g⊙g⊙(w_now - w_then).

    Args:
        strength: λ ≥ 0.
    """

    strength: float = 0.04
    weights = ("stash", "predict")

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"strength={self.strength}: the compensation needs a strength of 0 or more")

    def attach(self, site: Site) -> Hooks:
        """Compensates a late stage."""
        return _DelayCompensation(self.strength) if site.delay and self.strength else Hooks()


class _DelayCompensation(Hooks):
    def __init__(self, strength: float) -> None:
        self.strength = strength

    def gradient(self, gradients: Gradients, weights: Sequence[Tensor], then: Sequence[Tensor]) -> Gradients:
        moves = [now - before for now, before in zip(weights, then)]
        return [None if g is None else g + self.strength * g * g * move for g, move in zip(gradients, moves)]


@dataclass(frozen=True)
class Accumulate(Correction):
    """One step for every `every` batches, with the mean of their gradients.

    Versions go on counting batches; between steps they hold the same weights. Gradients collected when `fit` ends are
    kept for the next one.
    """

    every: int
    credits = ("chain", "forward", "feedback")

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every={self.every!r}: give a whole number of batches, 1 or more")

    def attach(self, site: Site) -> Hooks:
        """Collects at every stage alike."""
        return _Accumulate(self.every) if self.every > 1 else Hooks()


class _Accumulate(Hooks):
    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0

    def skips(self) -> bool:
        self.count = (self.count + 1) % self.every
        return self.count > 0

    def gradient(self, gradients: Gradients, weights: Sequence[Tensor], then: Sequence[Tensor]) -> Gradients:
        return [None if g is None else g / self.every for g in gradients]

    def state(self) -> dict[str, object]:
        return {"count": self.count}

    def load(self, state: dict[str, object]) -> None:
        self.count = int(state["count"])  # pyright: ignore[reportArgumentType]
