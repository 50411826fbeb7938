"""`forward`: a directional derivative comes from the last stage; there are no backwards.

`d3>` in a plan sends the directional derivative of batch 3 towards the first stage. Each stage passes it on before its
own update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from freewheel.credit._credit import Credit
from freewheel.credit._forward_stage import DERIVATIVE, ForwardStage, parameter_names
from freewheel.plan import Action, Message, Op, Schedule, forward_only
from freewheel.stage import Blueprint, Recurrent, Stage
from freewheel.tangents import TangentOptions, check_patterns

if TYPE_CHECKING:
    from freewheel.methods import Pipeline


@dataclass(frozen=True, kw_only=True)
class Forward(TangentOptions, Credit):
    """Forward gradients: one pass of dual numbers, and d·u as the gradient of each stage.

    The options are those of the tangents: see `TangentOptions`.

    Args:
        each: Whether the micro-batches of a batch share its tangents (`batch`), or each has its own (`micro`).
        recurs_later: For each stage, whether a later one has recurrent layers; the trainer fills it in.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.Pipeline(credit=fw.Forward(tangents=4), delays=(1, 0)), k=2)
        >>> plan.locks, plan.memory()[0].graphs
        (frozenset(), 0)
    """

    name: ClassVar[str] = "forward"
    family: ClassVar[str] = "forward"
    learns_by: ClassVar[Op] = Op.FORWARD

    each: Literal["batch", "micro"] = "batch"
    recurs_later: tuple[bool, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction is not None and self.each != "batch":
            raise ValueError(f"each={self.each!r} with a direction: it gives one tangent a weight; use each='batch'")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The directional derivative."""
        return (DERIVATIVE,)

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        """Forwards and updates."""
        return forward_only(schedule, stage, batches)

    def queue_lengths(self, schedule: Schedule, gap: int) -> tuple[int, int]:
        """A stage passes a batch on while it computes the next; what else travels are derivatives, a few bytes each.

        But where a late stage waits for the norm over all stages, it takes nothing in meanwhile.
        """
        return gap * schedule.micro if schedule.norms else 1, gap

    def check(self, pipeline: Pipeline) -> None:
        """No backward sees any weights."""
        if pipeline.weights != "stash":
            raise ValueError(
                f"weights={pipeline.weights!r}: under credit='forward' no backward sees weights; leave it out"
            )

    def check_replicas(self, replicas: int, pipeline: Pipeline) -> None:
        """The other replicas rebuild a replica's gradient from its derivative and its seeds."""
        if self.perturb != "weights":
            raise ValueError(
                f"perturb={self.perturb!r} with replicas={replicas}: what moved is in one replica alone, so that the "
                "others cannot rebuild its gradient; use perturb='weights'"
            )
        if self.direction is not None:
            raise ValueError(f"direction with replicas={replicas}: every replica has tangents of its own; leave it out")
        if pipeline.along:
            raise ValueError(
                f"steps={pipeline.micro} with replicas={replicas}: sequences are cut along time or sharded over "
                "replicas, not both; leave one out"
            )

    def check_epochs(self, stages: Sequence[Stage], epochs: range) -> None:
        """Name patterns of the scale that match no parameter are refused."""
        check_patterns(self.scale, epochs, [names for stage in stages for names in parameter_names(stage.blueprint)])

    def bind(self, modules: Sequence[nn.Module]) -> Forward:
        """Finds the stages in front of recurrent layers."""
        recurs = [any(isinstance(part, Recurrent) for part in module.modules()) for module in modules]
        return replace(self, recurs_later=tuple(any(recurs[k + 1 :]) for k in range(len(modules))))

    def build(self, blueprint: Blueprint) -> Stage:
        """Builds a stage that runs on dual numbers."""
        return ForwardStage(blueprint, self)
