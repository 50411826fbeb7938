"""How much slower training becomes when stages are slow at random: `freewheel bench straggler`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from freewheel.bench import straggler
from freewheel.bench._straggler import PERCENTAGES, StragglerContender
from freewheel.methods import Method
from freewheel.reproduce.jobs._job import Context, Job


@dataclass(frozen=True, kw_only=True)
class Straggler(Job):
    """A method with three equal stages, each of which is slow for one batch in three.

    Args:
        name: The paper's name of it.
        method: The method.
        repeats: Rounds, each with its own draws.
        batches: The timed batches of each measurement.
    """

    seeded: ClassVar[bool] = False  # a round has its own draws
    timed: ClassVar[bool] = True

    name: str
    method: Method
    repeats: int = 3
    batches: int = 480

    @property
    def title(self) -> str:
        """The method."""
        return f"stragglers, {self.name}"

    def quick(self) -> tuple[Straggler, tuple[str, ...]]:
        """One round of fewer batches."""
        small = replace(self, repeats=1, batches=60)
        return small, (f"1 round of {small.batches} batches for {self.repeats} of {self.batches}",)

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The percentage by which it becomes slower, for each percentage of a slow stage."""
        contender = StragglerContender(name=self.name, method=self.method)
        found = straggler(
            repeats=self.repeats,
            batches=self.batches,
            contenders=[contender],
            log=partial(_last_part, context),
        )
        slow_downs = zip(PERCENTAGES, found["rows"][0]["slow_downs"])
        return {**{f"{percentage} %": value for percentage, value in slow_downs}, "asleep": found["asleep"]}


def _last_part(context: Context, line: str) -> None:
    context.tell(line.rpartition(", ")[2])
