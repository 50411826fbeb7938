"""`freewheel train --transfer`: checked before anything is loaded, put into the method once the network is there."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from freewheel._errors import whole_number
from freewheel.methods import Method, Pipeline
from freewheel.models import classifier
from freewheel.tangents import Transfer

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Transfer)}


@dataclass(frozen=True, kw_only=True)
class TransferFlags:
    """What was typed, None for what was not."""

    layers: list[str] | None
    warmup: int | None
    ramp: int | None
    peak: float | None

    def given(self) -> dict[str, Any]:
        """The arguments of `Transfer` that were typed."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check(self, *, asked: bool, method: str, forward: bool, options: dict[str, Any], epochs: int) -> None:
        """Refuses what does not go together, by the names of the flags."""
        if not asked:
            for name in self.given():
                raise ValueError(f"--transfer-{name} without --transfer: give that as well")
            return
        if not forward:
            raise ValueError(
                f"--transfer with --method {method}: its schedule is for the tangents of forward gradients; give "
                "--method asyncfgd, or leave --transfer out"
            )
        if "scale" in options:
            raise ValueError(f"--transfer with -o scale={options['scale']}: both set the scale of tangents, give one")
        chosen = DEFAULTS | self.given()
        whole_number("--transfer-warmup", chosen["warmup"], least=0)
        whole_number("--transfer-ramp", chosen["ramp"], least=1)
        if not 0 <= chosen["peak"] < float("inf"):
            raise ValueError(f"--transfer-peak={chosen['peak']:g}: give a number from 0 on, such as 0.15")
        if epochs <= chosen["warmup"] and chosen["peak"]:
            raise ValueError(
                f"--epochs {epochs} with a warm-up of {chosen['warmup']}: all but the classifier would stay as it is; "
                "give more --epochs, or a shorter --transfer-warmup (--transfer-peak 0 for the classifier alone)"
            )

    def schedule(self, model: nn.Module) -> Transfer:
        """The schedule for this network."""
        return Transfer(classifier=classifier(model), **self.given())


def with_schedule(method: Method, schedule: Transfer) -> Method:
    """The method, with this schedule for a scale."""
    if isinstance(method, Pipeline):
        return replace(method, credit=replace(method.credit, scale=schedule))
    return replace(method, scale=schedule)  # pyright: ignore[reportArgumentType]


def in_words(schedule: Transfer) -> str:
    """One line.

    Example:
        >>> in_words(Transfer(classifier="fc.*", warmup=3, ramp=5))
        'fc.* from the first epoch on, *.bias from epoch 4 on, with α growing to 0.15 in epoch 8'
    """
    first, last = schedule.warmup + 1, schedule.warmup + schedule.ramp
    alone = f"{' '.join(schedule.classifier)} from the first epoch on, "
    if not schedule.peak:
        return f"{alone}and nothing else"
    grows = f"with α growing to {schedule.peak:g} in epoch {last}" if last > first else f"with α = {schedule.peak:g}"
    return f"{alone}{' '.join(schedule.layers)} from epoch {first} on, {grows}"
