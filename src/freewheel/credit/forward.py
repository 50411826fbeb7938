"""`forward`: a directional derivative from the last stage, without backwards.

`d3>` in a plan sends the directional derivative of batch 3 from the last stage to all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from freewheel._compare import far_apart
from freewheel.credit._credit import Credit
from freewheel.credit._forward_stage import DERIVATIVE, ForwardStage
from freewheel.credit._parameters import parameter_names
from freewheel.plan import Action, Message, Op, Schedule, forward_only
from freewheel.stage import Blueprint, Stage, recurrent_layers
from freewheel.tangents import TangentOptions, check_patterns

if TYPE_CHECKING:
    from freewheel.methods import Pipeline


@dataclass(frozen=True, kw_only=True)
class Forward(TangentOptions, Credit):
    """Forward gradients: one pass of dual numbers, and d·u as the gradient of each stage.

    Args:
        each: Whether the micro-batches of a batch share its tangents (`batch`) or each has its own (`micro`).
        recurs_later: For each stage, whether a later one has recurrent layers; set by `bind`.
        eager: Whether passes are not compiled even under the trainer's `compile=True`; set by `probe`.

    See `TangentOptions` for the others.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan(fw.Pipeline(credit=fw.Forward(tangents=4), delays=(1, 0)), k=2)
        >>> plan.locks, plan.memory()[0].graphs
        (frozenset(), 0)
    """

    name: ClassVar[str] = "forward"
    family: ClassVar[str] = "forward"
    repeats: ClassVar[bool] = True
    learns_by: ClassVar[Op] = Op.FORWARD

    each: Literal["batch", "micro"] = "batch"
    recurs_later: tuple[bool, ...] = field(default=(), repr=False, compare=False)
    eager: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction is not None and self.each != "batch":
            raise ValueError(f"each={self.each!r} with a direction: it has one tangent per weight; use each='batch'")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The directional derivative."""
        return (DERIVATIVE,)

    def actions(self, schedule: Schedule, stage: int, batches: Iterable[int]) -> Iterator[Action]:
        """Forwards and updates."""
        return forward_only(schedule, stage, batches)

    def queue_lengths(self, schedule: Schedule, gap: int) -> tuple[int, int]:
        """Return 1 for activations, which a stage receives while computing, unless it waits for a global norm."""
        return gap * schedule.micro if schedule.norms else 1, gap

    @property
    def ties(self) -> bool:
        """Whether the weights are perturbed: a perturbed activation only teaches the weight of its own layer."""
        return self.perturb == "weights"

    def check(self, pipeline: Pipeline) -> None:
        """Reject `weights`, which have no effect."""
        if pipeline.weights != "stash":
            raise ValueError(f"weights={pipeline.weights!r}: credit='forward' has no backwards; leave it out")

    def check_replicas(self, replicas: int, pipeline: Pipeline) -> None:
        """Reject options under which replicas cannot rebuild gradients from derivatives and seeds alone."""
        if self.perturb != "weights":
            raise ValueError(
                f"perturb={self.perturb!r} with replicas={replicas}: other replicas do not have the perturbed "
                "activations and cannot rebuild the gradient; use perturb='weights'"
            )
        if self.direction is not None:
            raise ValueError(f"direction with replicas={replicas}: every replica has its own tangents; leave it out")
        if pipeline.along:
            raise ValueError(
                f"steps={pipeline.micro} with replicas={replicas}: sequences are split along time or sharded over "
                "replicas, not both; leave one out"
            )

    def check_captured(self, schedule: Schedule) -> None:
        """Reject sequences split along time, and perturbations that are drawn on the CPU."""
        if schedule.along:
            raise ValueError(
                f"steps={schedule.micro} with runtime='graph': a state is carried from step to step; use 'threads'"
            )
        if self.draws_on_cpu and self.perturb == "activations":
            raise ValueError(
                f"distribution={self.distribution!r} with runtime='graph': it is drawn on the CPU; use 'gaussian', or "
                "runtime='threads'"
            )

    def check_compiled(self) -> None:
        """Reject perturbed activations."""
        if self.perturb == "activations":
            raise ValueError("compile=True with perturb='activations': only perturb='weights' compiles; leave one out")

    def check_epochs(self, stages: Sequence[Stage], epochs: range) -> None:
        """Reject name patterns of the scale that match no parameter."""
        check_patterns(self.scale, epochs, [names for stage in stages for names in parameter_names(stage.blueprint)])

    def probe(self) -> Forward:
        """Return this credit with known tangents, so that its derivative can be compared."""
        if self.perturb != "weights" or self.each != "batch":
            return self
        return replace(self, tangents=1, direction=waves, scale=1.0, eager=True)

    def wrong_gradient(
        self,
        ours: Sequence[Tensor | None],
        plain: Sequence[Tensor | None],
        *,
        coarse: bool,
        compiled: bool,
    ) -> tuple[int, str] | None:
        """Compare the directional derivative, where the tangents are known."""
        if self.direction is not waves:
            return None
        known = [(i, g, wave(g)) for i, g in enumerate(plain) if g is not None]
        terms = torch.stack([(g.conj() * u).real.sum().cpu() for _, g, u in known] or [torch.zeros(())])
        for i, g, u in known:
            ours_i = ours[i]
            if ours_i is None and g.any():
                return i, "is missing, but not"
            if ours_i is None:
                continue
            square = u[ours_i != 0].abs().square().sum()  # padding has no tangent
            derivative = (ours_i.conj() * u).real.sum() / square if square else square
            if far_apart(derivative, terms.sum(), terms.norm().item(), coarse):
                return i, "is that of another directional derivative than the one found"
        return None

    def bind(self, modules: Sequence[nn.Module]) -> Forward:
        """Find the stages before recurrent layers."""
        recurs = [bool(recurrent_layers(module)) for module in modules]
        return replace(self, recurs_later=tuple(any(recurs[k + 1 :]) for k in range(len(modules))))

    def build(self, blueprint: Blueprint) -> Stage:
        """Build a `ForwardStage`."""
        return ForwardStage(blueprint, self)


def waves(batch: int, stage: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tangents that anyone can compute from the shapes of the weights; see `TangentOptions.direction`."""
    return {name: wave(weight) for name, weight in weights.items()}


def wave(like: Tensor) -> Tensor:
    """Return the tangent of a weight."""
    values = torch.arange(like.numel(), device=like.device, dtype=torch.float32).cos()
    return values.view(like.shape).to(like.dtype)
