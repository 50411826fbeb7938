"""The options of forward gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from freewheel._errors import of_type, one_of, whole_number
from freewheel.tangents._scale import Scale, check_scale
from freewheel.tangents.distributions import Distribution, find_distribution

Perturb = Literal["weights", "activations"]
Direction = Callable[[int, int, dict[str, Tensor]], Mapping[str, Tensor]]

PERTURBS: tuple[Perturb, ...] = ("weights", "activations")


@dataclass(frozen=True, kw_only=True)
class TangentOptions:
    """The random directions of forward gradients: what `fw.Forward` and the methods that use it share.

    Args:
        distribution: What each tensor is drawn from: `gaussian`, `rademacher`, `sphere`, or a `fw.Distribution`. All
            have E[u·uᵀ] = I, so that the estimate is unbiased.
        tangents: How many of them a step averages.
        checkpoint: Whether to keep only their seeds until the update, where they are drawn again, tensor by tensor.
        direction: A function of (batch, stage, parameters by name) that returns tangents by name, in place of random
            ones. It is called once per batch; a parameter that it leaves out is not trained.
        scale: α, which multiplies tangents: a number, a dict of numbers by name pattern, or a function of the epoch; 0
            freezes.
        perturb: What the tangents move: `weights`, or the pre-activations of Linear and Conv2d layers (`activations`).
        compile: Whether to compile each stage's dual pass.
    """

    distribution: str | Distribution = "gaussian"
    tangents: int = 1
    checkpoint: bool = True
    direction: Direction | None = None
    scale: Scale = 1.0
    perturb: Perturb = "weights"
    compile: bool = False

    def __post_init__(self) -> None:
        find_distribution(self.distribution)
        one_of("perturb", self.perturb, PERTURBS)
        whole_number("tangents", self.tangents, least=1)
        for name in ("checkpoint", "compile"):
            of_type(name, getattr(self, name), bool, "give True or False")
        check_scale(self.scale)
        if self.compile and self.perturb == "activations":
            raise ValueError(
                "compile=True with perturb='activations': only moved weights can be compiled; leave one out"
            )
        if self.direction is None:
            return
        if not callable(self.direction):
            raise TypeError(f"direction={self.direction!r}: give a function of (batch, stage, params)")
        for name, value, plain in (("tangents", self.tangents, 1), ("perturb", self.perturb, "weights")):
            if value != plain:
                raise ValueError(
                    f"{name}={value!r} with a direction: it gives one tangent a weight; use {name}={plain!r}"
                )
