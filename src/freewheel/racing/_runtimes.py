"""Which runtime a race has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from freewheel.methods import Racing, Wild
from freewheel.racing._here import race
from freewheel.racing._processes import race_in_processes
from freewheel.runtime import Outcome, Run
from freewheel.stage import Stage


def runtime_of(method: Racing, runtime: str, blueprints: Sequence[Any]) -> Callable[[Run], Outcome]:
    """What runs a race.

    Args:
        method: The method.
        runtime: `simulate`, `threads` or, for workers that take whole batches, `processes`.
        blueprints: Of the stages; see `freewheel.trainer`.
    """
    make = Maker(blueprints)
    if runtime == "processes":
        assert isinstance(method, Wild)
        return partial(race_in_processes, method=method, make=make)
    return partial(race, method=method, make=make, simulated=runtime == "simulate")


class Maker:
    """Makes stages like the trainer's, with optimizers and schedules of their own, on other modules."""

    def __init__(self, blueprints: Sequence[Any]) -> None:
        self._blueprints = blueprints

    def __call__(self, modules: Sequence[nn.Module]) -> list[Stage]:
        return [replace(blueprint, module=module).build() for blueprint, module in zip(self._blueprints, modules)]
