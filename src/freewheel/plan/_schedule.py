"""The few numbers a plan is built from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from freewheel.plan._actions import ACTIVATION, CLIP, GRADIENT, NORMS, SHARE, TURN, Message, Op

if TYPE_CHECKING:
    from freewheel.plan._credit import PlanCredit

Order = Literal["forward", "backward"]
WeightPolicy = Literal["stash", "recompute", "current", "predict"]
ORDERS: tuple[Order, ...] = ("forward", "backward")
WEIGHTS: tuple[WeightPolicy, ...] = ("stash", "recompute", "current", "predict")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that decides a plan but the number of batches.

    Args:
        name: The method's name, for the drawing.
        credit: Where a stage's learning signal comes from.
        delays: For each stage, how many batches it has forwarded beyond the one it learns from.
        order: What a stage does first in each round, its forward or its backward.
        weights: Which weights a late backward sees.
        micro: Micro-batches a batch is cut into.
        along: The dimension it is cut along: 0, the samples; 1, time.
        ahead: With micro-batches, how many a stage forwards before it goes backward, beyond the one it learns from.
        turns: Whether every stage waits until all later ones have forwarded the batch (the forward lock).
        norms: Whether stages exchange gradient norms before an update, for clipping by the global norm.
        queues: For each boundary between stages, the lengths of the activation and the gradient queue.
        replicas: How many copies of each stage learn together, each from its own samples.
        cell: What one column of the drawing holds: one `action`, or one `round` (a forward and a backward).
    """

    name: str = "pipeline"
    credit: PlanCredit = field(compare=False)
    delays: tuple[int, ...]
    order: Order = "forward"
    weights: WeightPolicy = "stash"
    micro: int = 1
    along: int = 0
    ahead: tuple[int, ...] = ()
    turns: bool = False
    norms: bool = False
    queues: tuple[tuple[int, int], ...] = ()
    replicas: int = 1
    cell: Literal["action", "round"] = "action"
    credit_options: tuple[tuple[str, object], ...] = field(init=False)  # those that decide the plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "credit_options", (("credit", self.credit.name), *self.credit.plan_options().items()))

    @property
    def stages(self) -> int:
        """The number of stages K."""
        return len(self.delays)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The kinds of messages that stages exchange."""
        return (
            ACTIVATION,
            *self.credit.messages,
            *([TURN] if self.turns else []),
            *([NORMS, CLIP] if self.norms else []),
            *([SHARE] if self.replicas > 1 else []),
        )

    def gets_targets(self, stage: int) -> bool:
        """Whether this stage gets the targets of each batch."""
        return self.credit.needs_targets or stage == self.stages - 1

    @property
    def goes_backward(self) -> bool:
        """Whether stages learn by backwards."""
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
        """The queue lengths of each boundary: those given, or the shortest that never hold a stage back.

        Between two neighbours at most `m_k - m_(k+1) + 1` batches travel up and down together; a credit may need more.
        """
        if self.queues:
            return self.queues
        gaps = [a - b + 1 + self.credit.lag for a, b in zip(self.delays, self.delays[1:])]
        return tuple(self.credit.queue_lengths(self, max(1, gap)) for gap in gaps)

    def with_slack(self, slack: int) -> Schedule:
        """The same schedule with every queue longer by `slack`."""
        return replace(self, queues=tuple((a + slack, g + slack) for a, g in self.lengths()))
