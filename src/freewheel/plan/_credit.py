"""What a plan asks of a credit: the work of a stage, the messages it needs, and the rules it keeps."""

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
    """The half of a credit that plans know. The defaults are those of the chain rule.

    Subclasses are frozen dataclasses; `freewheel.credit.Credit` adds the half that stages know.
    """

    name: ClassVar[str]
    plan_fields: ClassVar[tuple[str, ...]] = ()  # the options that decide the plan
    learns_by: ClassVar[Op] = Op.BACKWARD  # the work that an update follows
    extra: ClassVar[Op | None] = None  # work once a batch, after the update, at every stage but the last
    lag: int = 0  # updates between the update of a batch and its extra work

    @property
    def messages(self) -> tuple[Message, ...]:
        """What stages exchange beside activations, in the order in which it is received."""
        return (GRADIENT,)

    @property
    def needs_targets(self) -> bool:
        """Whether every stage gets the targets, rather than the last one alone."""
        return False

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        """Builds the work of one stage, without messages."""
        return flushed(schedule, stage, batches) if schedule.micro > 1 else delayed(schedule, stage, batches)

    def queue_lengths(self, schedule: Schedule, gap: int) -> tuple[int, int]:
        """Returns the lengths of the queues at a boundary where `gap` batches may travel at once."""
        length = max(gap, schedule.micro)
        return length, length

    def broken_rule(self, action: Action, rules: StageRules) -> str | None:
        """Returns the rule of this credit's own that an action breaks, or None."""
        return None

    def plan_options(self) -> dict[str, object]:
        """Returns the options that decide the plan, where they are not the default ones."""
        defaults = {f.name: f.default for f in fields(self)}  # pyright: ignore[reportArgumentType]
        found = {name: getattr(self, name) for name in self.plan_fields}
        return {name: value for name, value in found.items() if value != defaults[name]}


CREDITS: dict[str, type[PlanCredit]] = {}  # by name; `freewheel.credit` has the rows
