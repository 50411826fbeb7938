"""The options of forward gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor

from freewheel._errors import check_callable, of_type, one_of, whole_number
from freewheel.tangents._scale import Scale, check_scale
from freewheel.tangents.distributions import Distribution, find_distribution

Perturb = Literal["weights", "activations"]
Direction = Callable[[int, int, dict[str, Tensor]], Mapping[str, Tensor]]

PERTURBS: tuple[Perturb, ...] = ("weights", "activations")


@dataclass(frozen=True, kw_only=True)
class TangentOptions:
    """The options of tangents, shared by `fw.Forward` and its methods.

    Args:
        distribution: The distribution of tangents: `gaussian`, `rademacher` (±1), `sphere` (radius √d), or a
            `fw.Distribution`. All have E[u·uᵀ] = I, which makes the estimate unbiased.
        tangents: The number of tangents that a step averages.
        checkpoint: Whether to store only their seeds until the update, which redraws them tensor by tensor.
        direction: A function of (batch, stage, parameters by name) that returns tangents by name, instead of random
            ones. It is called once per batch; a parameter without a tangent is not trained.
        scale: α, a factor on tangents: a number, a dict of numbers by name pattern, or a function of the epoch; 0
            freezes.
        perturb: What tangents perturb: `weights`, or the pre-activations of Linear and Conv2d layers (`activations`).
    """

    distribution: str | Distribution = "gaussian"
    tangents: int = 1
    checkpoint: bool = True
    direction: Direction | None = None
    scale: Scale = 1.0
    perturb: Perturb = "weights"

    def __post_init__(self) -> None:
        find_distribution(self.distribution)
        one_of("perturb", self.perturb, PERTURBS)
        whole_number("tangents", self.tangents, least=1)
        of_type("checkpoint", self.checkpoint, bool, "give True or False")
        check_scale(self.scale)
        if self.direction is None:
            return
        check_callable("direction", self.direction, "give a function of (batch, stage, params)")
        for name, value, plain in (("tangents", self.tangents, 1), ("perturb", self.perturb, "weights")):
            if value != plain:
                raise ValueError(f"{name}={value!r} with a direction: it has one tangent per weight; use {plain!r}")

    @cached_property
    def draws_on_cpu(self) -> bool:
        """Whether tangents are drawn on the CPU, for every device."""
        return find_distribution(self.distribution).on_cpu

    @property
    def counts(self) -> bool:
        """Whether tangents can be drawn inside compiled kernels."""
        drawn = self.checkpoint and self.direction is None and self.perturb == "weights"
        return drawn and find_distribution(self.distribution).counted is not None
