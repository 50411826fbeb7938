"""The planning interface of a credit: the actions of a stage, its messages and its rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

from freewheel.plan._actions import GRADIENT, Action, Message, Op
from freewheel.plan._streams import delayed, flushed

if TYPE_CHECKING:
    from freewheel.plan._check import StageRules
    from freewheel.plan._schedule import Schedule


class PlanCredit:
    """The planning half of a credit, with the defaults of the chain rule; `freewheel.credit.Credit` adds the rest."""

    name: ClassVar[str]
    plan_fields: ClassVar[tuple[str, ...]] = ()  # the options that affect the plan
    learns_by: ClassVar[Op] = Op.BACKWARD  # the op that an update follows
    extra: ClassVar[Op | None] = None  # an op once per batch, after the update, at every stage but the last
    lag: int = 0  # updates between the update of a batch and its extra op

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages besides activations, in the order in which they are received."""
        return (GRADIENT,)

    @property
    def needs_targets(self) -> bool:
        """Whether every stage receives the targets, not only the last."""
        return False

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        """Build the actions of one stage, without messages."""
        return flushed(schedule, stage, batches) if schedule.micro > 1 else delayed(schedule, stage, batches)

    def queue_lengths(self, schedule: Schedule, gap: int) -> tuple[int, int]:
        """Return the lengths of the queues at a boundary with up to `gap` batches in flight."""
        length = max(gap, schedule.micro)
        return length, length

    def broken_rule(self, action: Action, rules: StageRules) -> str | None:
        """Return the credit-specific rule that an action breaks, or None."""
        return None

    def plan_options(self) -> dict[str, object]:
        """Return the non-default options that affect the plan."""
        defaults = {f.name: f.default for f in fields(self)}  # pyright: ignore[reportArgumentType]
        found = {name: getattr(self, name) for name in self.plan_fields}
        return {name: value for name, value in found.items() if value != defaults[name]}


CREDITS: dict[str, type[PlanCredit]] = {}  # by name; filled by `freewheel.credit`
