"""The `Method` interface and `Pipeline`, which every planned method is a preset of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch

from freewheel._config import RunConfig
from freewheel._errors import of_type, one_of, whole_number
from freewheel.corrections import Correction
from freewheel.credit import Chain, Credit, find_credit
from freewheel.plan import ORDERS, OVER_TIME, WEIGHTS, Order, OverTime, Schedule, WeightPolicy
from freewheel.runtime import RUNTIMES, Outcome, Run


class Method(ABC):
    """A way to train a network in stages: a frozen dataclass of options and a preset of `Pipeline`.

    Example:
        >>> from dataclasses import dataclass
        >>> import freewheel as fw
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Stale(fw.Method):
        ...     name = "stale"
        ...     delay: int = 1
        ...
        ...     def pipeline(self, k):
        ...         return fw.Pipeline(title=self.name, delays=[self.delay * (k - 1 - i) for i in range(k)])
        >>> fw.plan(Stale(delay=2), k=3).delays
        (4, 2, 0)
    """

    name: ClassVar[str]
    planned: ClassVar[bool] = True  # whether it has a plan
    default_runtime: ClassVar[str] = "threads"  # of the command line

    @abstractmethod
    def pipeline(self, k: int) -> Pipeline:
        """Return this method as a pipeline of k stages."""

    def stage_pipeline(self, k: int) -> Pipeline:
        """Return the pipeline that the trainer's k stages are built for, by default that of the plan."""
        return self.pipeline(k)

    def over(self, replicas: int) -> Method:
        """Return the method that each replica follows on its own shard, by default this one."""
        return self

    def total_workers(self, stages: int) -> int:
        """Return the number of concurrent workers, given the number of stages over all replicas."""
        return stages

    @property
    def copies(self) -> int:
        """Copies of the weights that its workers update, beside replicas."""
        return 1

    def check_run(self, config: RunConfig) -> None:  # noqa: B027
        """Reject a runtime or options that this method does not support."""

    def check_batch_callbacks(self) -> None:  # noqa: B027
        """Reject callbacks for batches."""

    @property
    def rows(self) -> Sequence[str] | None:
        """The rows of a trace; None for one for each stage."""
        return None

    def check_trace(self, devices: Iterable[torch.device]) -> None:  # noqa: B027
        """Reject a trace of stages on these devices."""

    def check_checkpoints(self, what: str) -> None:  # noqa: B027
        """Reject checkpoints during a fit; `what` names the request."""

    def runner(self, runtime: str, blueprints: Sequence[Any]) -> Callable[[Run], Outcome]:
        """Return the function that runs a fit on this runtime; `blueprints` rebuild the stages."""
        return RUNTIMES[runtime].run


@dataclass(frozen=True, kw_only=True)
class Pipeline(Method):
    """Any combination of credit, delays, order, weights and corrections.

    Args:
        credit: The source of a stage's learning signal: `fw.Chain()`, the gradient of the next stage; `fw.Forward()`,
            a directional derivative of the loss; `fw.Local()`, the loss of an auxiliary head; `fw.Synthetic()`, a
            predicted gradient; `fw.Feedback()`, the output error through random weights; `fw.Aligned()`, the chain
            rule through random weights; or one of these by name.
        delays: For each stage, the number of batches it forwards beyond the one it learns from; must not increase.
        order: Whether a round starts with its `forward` or its `backward`.
        weights: The weights that a late backward sees: `stash` (those of its forward), `recompute` (the newest, after
            a second forward), `current` (the newest, with the stored activations) or `predict` (the predicted weights
            that its forward ran on).
        corrections: Transforms of the gradient or the step, applied in this order.
        micro: Micro-batches per batch; more than one requires zero delays under the chain rule.
        along: The dimension that micro-batches split: 0, the samples; 1, time (under `fw.Forward`).
        over_time: Along time, whether the loss of a sequence is the `mean` or the `sum` of those of its time steps.
        ahead: With micro-batches, how many each stage forwards before its first backward; all by default.
        turns: Whether each stage waits until all later ones have forwarded the batch (the forward lock).
        queues: For each boundary, the lengths of the activation and the gradient queue; sufficient by default.
        title: The name in drawings.
        cell: One column of the drawing: one `action`, or one `round` of a forward and a backward.

    Example:
        >>> import freewheel as fw
        >>> stale = fw.Pipeline(delays=(3, 1, 0), order="backward", corrections=[fw.DelayCompensation(0.1)])
        >>> fw.plan(stale, k=3, batches=9).versions(stage=0, batch=5)
        Versions(forward=3, backward=3)
        >>> fw.Pipeline(credit=fw.Forward(tangents=4), delays=(1, 0)).credit.tangents
        4
    """

    name: ClassVar[str] = "pipeline"

    credit: Credit = field(default_factory=Chain)
    delays: Sequence[int]
    order: Order = "forward"
    weights: WeightPolicy = "stash"
    corrections: Sequence[Correction] = ()
    micro: int = 1
    along: Literal[0, 1] = 0
    over_time: OverTime = "mean"
    ahead: Sequence[int] = ()
    turns: bool = False
    queues: Sequence[tuple[int, int]] = ()
    title: str = "pipeline"
    cell: Literal["action", "round"] = "action"

    def __post_init__(self) -> None:
        object.__setattr__(self, "credit", find_credit(self.credit))
        one_of("order", self.order, ORDERS)
        one_of("weights", self.weights, WEIGHTS)
        object.__setattr__(self, "delays", whole_numbers("delays", self.delays))
        object.__setattr__(self, "ahead", whole_numbers("ahead", self.ahead))
        for k, (here, after) in enumerate(zip(self.delays, self.delays[1:])):
            if after > here:
                raise ValueError(
                    f"delays={tuple(self.delays)}: stage {k + 1} would learn later ({after}) than stage {k} ({here}), "
                    "whose signal comes through it; delays must never increase"
                )
        whole_number("micro", self.micro, least=1)
        if self.along not in (0, 1) or (self.along and self.credit.family != "forward"):
            raise ValueError(f"along={self.along!r}: give 0, the samples, or under credit='forward' 1, time")
        one_of("over_time", self.over_time, OVER_TIME)
        if self.over_time != "mean" and not self.along:
            raise ValueError(
                f"over_time={self.over_time!r} without micro-batches along time: split sequences (steps=2 or more), or "
                "give a loss that sums over time itself"
            )
        self._check_queues()
        self.credit.check(self)
        self._check_corrections()

    def _check_queues(self) -> None:
        hint = "give a pair of lengths for each boundary, such as [(2, 2)]"
        pairs = [of_type("queues", pair, Sequence, hint) for pair in of_type("queues", self.queues, Sequence, hint)]
        if any(len(pair) != 2 for pair in pairs):
            raise TypeError(f"queues={self.queues!r}: {hint}")
        object.__setattr__(self, "queues", tuple(whole_numbers("queues", pair) for pair in pairs))
        if any(min(pair) < 1 for pair in self.queues):
            raise ValueError(f"queues={tuple(self.queues)}: every queue needs a length of 1 or more")

    def _check_corrections(self) -> None:
        given = of_type("corrections", self.corrections, Sequence, "give a list of them, such as [fw.Shrink(0.5)]")
        object.__setattr__(self, "corrections", tuple(given))
        for correction in self.corrections:
            kind = type(correction).__name__
            of_type("corrections", correction, Correction, "give a list of them, such as [fw.Shrink(0.5)]")
            if self.credit.family not in correction.credits:
                raise ValueError(f"{kind} has no meaning with credit={self.credit.name!r}: leave it out")
            if correction.weights and self.weights not in correction.weights:
                raise ValueError(
                    f"{kind} has no meaning with weights={self.weights!r}: "
                    f"use weights={' or '.join(map(repr, correction.weights))}"
                )

    def pipeline(self, k: int) -> Pipeline:
        """Return this pipeline if it has k stages."""
        if len(self.delays) != k:
            raise ValueError(f"delays={tuple(self.delays)} are for {len(self.delays)} stages, but there are {k}")
        if self.queues and len(self.queues) != k - 1:
            raise ValueError(f"queues={tuple(self.queues)}: {k} stages have {k - 1} boundaries, each with a pair")
        if self.ahead and len(self.ahead) != k:
            raise ValueError(f"ahead={tuple(self.ahead)} is for {len(self.ahead)} stages, but there are {k}")
        return self

    def schedule(self, *, slack: int = 0, norms: bool = False, replicas: int = 1) -> Schedule:
        """Return the schedule that plans are built from."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("title", "corrections")}
        if not self.ahead and self.credit.family == "chain" and self.micro > 1:
            shared["ahead"] = (self.micro,) * len(self.delays)
        schedule = Schedule(name=self.title, norms=norms, replicas=replicas, **shared)
        return schedule.with_slack(slack) if slack else schedule


def shared_options(method: Any, options: type[Any]) -> dict[str, Any]:
    """Return the options that a preset shares with its credit, by name."""
    return {f.name: getattr(method, f.name) for f in fields(options)}


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """Return the values as a tuple of whole numbers, 0 or more, or raise a one-line error."""
    given = tuple(of_type(name, values, Sequence, f"give one whole number for each stage, such as {name}=(2, 1, 0)"))
    for i, value in enumerate(given):
        whole_number(f"{name}={given}: {name}[{i}]", value, least=0)
    return given
