"""What the user chooses about tangents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from freewheel._errors import unknown, whole_number
from freewheel.tangents._scale import Scale, check_scale

Distribution = Literal["gaussian", "rademacher", "sphere"]
Perturb = Literal["weights", "activations"]
Direction = Callable[[int, int, dict[str, Tensor]], Mapping[str, Tensor]]

DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "rademacher", "sphere")
PERTURBS: tuple[Perturb, ...] = ("weights", "activations")


@dataclass(frozen=True, kw_only=True)
class Tangents:
    """The random directions of forward gradients.

    Args:
        distribution: What each tensor is drawn from: `gaussian`, N(0, I); `rademacher`, ±1; `sphere`, uniformly from
            the sphere of radius √d, d the tensor's size. All have E[u·uᵀ] = I, so that the estimate is unbiased.
        tangents: How many of them a step averages.
        checkpoint: Whether only their seeds are kept until the update, where they are drawn again, tensor by tensor.
        direction: One's own: gets the numbers of the batch and the stage and the parameters by name, gives tangents by
            name. It is called once a batch, and what it gives is kept; a parameter that it leaves out is not trained.
        scale: α, by which tangents are multiplied; see `freewheel.tangents.Scale`.
        perturb: What the tangents move: `weights`, or the pre-activations of Linear and Conv2d layers (`activations`).
        compile: Whether each stage's dual pass is compiled.
        each: Whether the micro-batches of a batch share its tangents (`batch`), or each has its own (`micro`).
    """

    distribution: Distribution = "gaussian"
    tangents: int = 1
    checkpoint: bool = True
    direction: Direction | None = None
    scale: Scale = 1.0
    perturb: Perturb = "weights"
    compile: bool = False
    each: Literal["batch", "micro"] = "batch"

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise unknown("distribution", self.distribution, DISTRIBUTIONS)
        if self.perturb not in PERTURBS:
            raise unknown("perturb", self.perturb, PERTURBS)
        whole_number("tangents", self.tangents, least=1)
        for name in ("checkpoint", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: give True or False")
        check_scale(self.scale)
        if self.compile and self.perturb == "activations":
            raise ValueError(
                "compile=True with perturb='activations': only moved weights can be compiled; leave one out"
            )
        if self.direction is None:
            return
        if not callable(self.direction):
            raise TypeError(f"direction={self.direction!r}: give a function of (batch, stage, params)")
        for name, value, plain in (
            ("tangents", self.tangents, 1),
            ("perturb", self.perturb, "weights"),
            ("each", self.each, "batch"),
        ):
            if value != plain:
                raise ValueError(
                    f"{name}={value!r} with a direction: it gives one tangent a weight; use {name}={plain!r}"
                )
