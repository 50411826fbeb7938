"""The parameters that a plan is built from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from freewheel.plan._actions import ACTIVATION, CLIP, GRADIENT, NORMS, SHARE, TURN, Message, Op

if TYPE_CHECKING:
    from freewheel.plan._credit import PlanCredit

Order = Literal["forward", "backward"]
WeightPolicy = Literal["stash", "recompute", "current", "predict"]
ORDERS: tuple[Order, ...] = ("forward", "backward")
OverTime = Literal["mean", "sum"]
OVER_TIME: tuple[OverTime, ...] = ("mean", "sum")
WEIGHTS: tuple[WeightPolicy, ...] = ("stash", "recompute", "current", "predict")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All parameters of a plan except the number of batches; see `fw.Pipeline` for those not listed.

    Args:
        name: The method's name, for the drawing.
        ahead: With micro-batches, how many a stage forwards before its first backward, beyond the one it learns from.
        norms: Whether stages exchange gradient norms before an update, for clipping by the global norm.
        replicas: Copies of each stage that learn together, each from its own shard.
    """

    name: str = "pipeline"
    credit: PlanCredit = field(compare=False)
    delays: tuple[int, ...]
    order: Order = "forward"
    weights: WeightPolicy = "stash"
    micro: int = 1
    along: int = 0
    over_time: OverTime = "mean"
    ahead: tuple[int, ...] = ()
    turns: bool = False
    norms: bool = False
    queues: tuple[tuple[int, int], ...] = ()
    replicas: int = 1
    cell: Literal["action", "round"] = "action"
    credit_options: tuple[tuple[str, object], ...] = field(init=False)  # those that affect the plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "credit_options", (("credit", self.credit.name), *self.credit.plan_options().items()))
        taken = {message.letter for message in (ACTIVATION, TURN, NORMS, CLIP, SHARE)}
        for message in self.credit.messages:
            if message.letter in taken:
                raise ValueError(f"credit {self.credit.name!r}: the letter of {message} is taken, give it another")
            taken.add(message.letter)

    @property
    def stages(self) -> int:
        """The number of stages K."""
        return len(self.delays)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that stages exchange."""
        return (
            ACTIVATION,
            *self.credit.messages,
            *([TURN] if self.turns else []),
            *([NORMS, CLIP] if self.norms else []),
            *([SHARE] if self.replicas > 1 else []),
        )

    def gets_targets(self, stage: int) -> bool:
        """Whether this stage receives the targets."""
        return self.credit.needs_targets or stage == self.stages - 1

    @property
    def goes_backward(self) -> bool:
        """Whether stages run backwards."""
        return self.credit.learns_by is Op.BACKWARD

    @property
    def waits_for_gradients(self) -> bool:
        """Whether a backward needs the gradient of the next stage."""
        return GRADIENT in self.credit.messages

    @property
    def asynchronous(self) -> bool:
        """Whether any stage learns late."""
        return any(self.delays)

    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Return the queue lengths of each boundary: the given ones, or the shortest that never block a stage.

        At most `m_k - m_(k+1) + 1` batches are in flight between two neighbours; a credit may need more.
        """
        if self.queues:
            return self.queues
        gaps = [a - b + 1 + self.credit.lag for a, b in zip(self.delays, self.delays[1:])]
        return tuple(self.credit.queue_lengths(self, max(1, gap)) for gap in gaps)

    def with_slack(self, slack: int) -> Schedule:
        """Return the schedule with every queue longer by `slack`."""
        return replace(self, queues=tuple((a + slack, g + slack) for a, g in self.lengths()))
