"""The few numbers a plan is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Credit = Literal["chain", "forward", "local", "synthetic", "feedback"]
Order = Literal["forward", "backward"]
Weights = Literal["stash", "recompute", "current", "predict"]
CREDITS: tuple[Credit, ...] = ("chain", "forward", "local", "synthetic", "feedback")
ORDERS: tuple[Order, ...] = ("forward", "backward")
WEIGHTS: tuple[Weights, ...] = ("stash", "recompute", "current", "predict")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that decides a plan but the number of batches.

    Args:
        name: The method's name, for the drawing.
        credit: Where a stage's learning signal comes from: the gradient of the next stage (`chain`); a directional
            derivative from the last one (`forward`), in which case there are no backwards; a head of its own
            (`local`); a predicted gradient (`synthetic`); or the error at the output, or the target, through fixed
            random weights (`feedback`).
        delays: For each stage, how many batches it has forwarded beyond the one it learns from.
        order: What a stage does first in each round, its forward or its backward.
        weights: Which weights a late backward sees.
        micro: Micro-batches a batch is cut into; more than one needs zero delays under `chain`.
        along: The dimension it is cut along: 0, the samples; 1, time.
        ahead: With micro-batches, how many a stage forwards before it goes backward, beyond the one it learns from.
        turns: Whether every stage waits until all later ones have forwarded the batch (the forward lock).
        norms: Whether gradient norms are shared before an update, for clipping by the global norm.
        queues: For each boundary between stages, the lengths of the activation and the gradient queue.
        taught: Whether every stage gets the targets, rather than the last one alone.
        lag: Under `synthetic`, how many batches a stage learns from before it asks for the gradient of one.
        joined: Under `feedback`, whether a block of layers goes on in the next stage, which then sends its gradient.
        replicas: How many copies of each stage learn together, each from its own samples.
        cell: What one column of the drawing holds: one `action`, or one `round` (a forward and a backward).
    """

    name: str = "pipeline"
    credit: Credit = "chain"
    delays: tuple[int, ...]
    order: Order = "forward"
    weights: Weights = "stash"
    micro: int = 1
    along: int = 0
    ahead: tuple[int, ...] = ()
    turns: bool = False
    norms: bool = False
    queues: tuple[tuple[int, int], ...] = ()
    taught: bool = False
    lag: int = 0
    joined: bool = False
    replicas: int = 1
    cell: Literal["action", "round"] = "action"

    @property
    def stages(self) -> int:
        """The number of stages K."""
        return len(self.delays)

    def gets_targets(self, stage: int) -> bool:
        """Whether this stage is told what each batch should give."""
        return self.taught or stage == self.stages - 1

    @property
    def goes_backward(self) -> bool:
        """Whether stages learn by backwards."""
        return self.credit != "forward"

    @property
    def waits_for_gradients(self) -> bool:
        """Whether a backward needs a gradient from the next stage."""
        return self.credit == "chain" or self.joined

    @property
    def sends_gradients(self) -> bool:
        """Whether stages send gradients to the ones before."""
        return self.waits_for_gradients or self.credit == "synthetic"

    @property
    def sends_errors(self) -> bool:
        """Whether the error at the output goes from the last stage to all."""
        return self.credit == "feedback" and not self.taught

    @property
    def asynchronous(self) -> bool:
        """Whether any stage learns late."""
        return any(self.delays)

    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The queue lengths of each boundary: those given, or the shortest that never hold a stage back.

        Between two neighbours at most `m_k - m_(k+1) + 1` batches are on their way up and down together. Under
        `forward` a stage passes one on while it computes the next, and what else is on its way are derivatives, a few
        bytes each; but where a late stage waits for the norm over all stages, it takes nothing in meanwhile. Under
        `synthetic` it is the lag by which one stage may be ahead of the next.
        """
        if self.queues:
            return self.queues
        gaps = [a - b + 1 + self.lag for a, b in zip(self.delays, self.delays[1:])]
        if self.credit == "forward":
            return tuple((max(1, gap) * self.micro if self.norms else 1, max(1, gap)) for gap in gaps)
        return tuple((max(1, gap, self.micro), max(1, gap, self.micro)) for gap in gaps)

    def with_slack(self, slack: int) -> Schedule:
        """The same schedule with every queue longer by `slack`."""
        return replace(self, queues=tuple((a + slack, g + slack) for a, g in self.lengths()))
