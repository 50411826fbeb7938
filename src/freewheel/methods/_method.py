"""What a method is: credit, delays, weights and corrections; named methods are presets of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from freewheel._config import RunConfig
from freewheel._errors import of_type, one_of, whole_number
from freewheel.corrections import Correction
from freewheel.credit import Chain, Credit, find_credit
from freewheel.plan import ORDERS, WEIGHTS, Order, Schedule, WeightPolicy
from freewheel.runtime import RUNTIMES, Outcome, Run


class Method(ABC):
    """A way to train a network in stages. `pipeline` says it in the algebra's own terms, for K stages."""

    name: ClassVar[str]
    planned: ClassVar[bool] = True  # whether it has a plan
    default_runtime: ClassVar[str] = "threads"  # of the command line

    @abstractmethod
    def pipeline(self, k: int) -> Pipeline:
        """The choices that make this method, for k stages."""

    def stage_pipeline(self, k: int) -> Pipeline:
        """The pipeline that the trainer's k stages are built for: by default that of the plan."""
        return self.pipeline(k)

    def over(self, replicas: int) -> Method:
        """The method that each of so many replicas follows on its own samples: by default this one."""
        return self

    def total_workers(self, stages: int) -> int:
        """How many workers compute at the same time, given the number of stages of all replicas."""
        return stages

    def check_run(self, config: RunConfig) -> None:  # noqa: B027
        """Refuses a runtime, and options, that make no sense with this method."""

    def check_checkpoints(self, what: str) -> None:  # noqa: B027
        """Refuses checkpoints in the middle of a fit; `what` says what was asked for."""

    def runner(self, runtime: str, blueprints: Sequence[Any]) -> Callable[[Run], Outcome]:
        """Returns what runs a fit on this runtime; `blueprints` build the stages anew."""
        return RUNTIMES[runtime].run


@dataclass(frozen=True, kw_only=True)
class Pipeline(Method):
    """A free combination of credit, delays, order, weights and corrections.

    Args:
        credit: Where a stage's learning signal comes from: `fw.Chain()`, the gradient of the next stage;
            `fw.Forward()`, a directional derivative from the last one; `fw.Local()`, a head of its own;
            `fw.Synthetic()`, a predicted gradient; `fw.Feedback()`, the error at the output; `fw.Aligned()`, the chain
            rule through random weights; or the name of one of these.
        delays: For each stage, how many batches it has forwarded beyond the one it learns from; never increasing.
        order: Whether a round begins with its `forward` or with its `backward`.
        weights: Which weights a late backward sees: `stash` (those of its forward), `recompute` (the newest, the
            forward redone), `current` (the newest, with the stored activations) or `predict` (the forward runs on
            predicted ones, and the backward on the same).
        corrections: Transforms of the gradient or of the step, applied in this order.
        micro: Micro-batches a batch is cut into; more than one needs zero delays under the chain rule.
        along: The dimension they are cut along: 0, the samples; 1, time (under `fw.Forward`).
        ahead: With micro-batches, how many each stage forwards before it goes backward; all of them by default.
        turns: Whether each stage waits until all later ones have forwarded the batch.
        queues: For each boundary, the lengths of the activation and the gradient queue; enough by default.
        title: The name in drawings.
        cell: What a column of the drawing holds, one `action` or one `round` of a forward and a backward.

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
        """Itself, if it is made for k stages."""
        if len(self.delays) != k:
            raise ValueError(f"delays={tuple(self.delays)} are for {len(self.delays)} stages, but there are {k}")
        if self.queues and len(self.queues) != k - 1:
            raise ValueError(f"queues={tuple(self.queues)}: {k} stages have {k - 1} boundaries, each with a pair")
        if self.ahead and len(self.ahead) != k:
            raise ValueError(f"ahead={tuple(self.ahead)} is for {len(self.ahead)} stages, but there are {k}")
        return self

    def schedule(self, *, slack: int = 0, norms: bool = False, replicas: int = 1) -> Schedule:
        """Returns what the builders of plans need of it."""
        flushes = self.credit.family == "chain" and self.micro > 1
        schedule = Schedule(
            name=self.title,
            credit=self.credit,
            delays=tuple(self.delays),
            order=self.order,
            weights=self.weights,
            micro=self.micro,
            along=self.along,
            ahead=tuple(self.ahead) or ((self.micro,) * len(self.delays) if flushes else ()),
            turns=self.turns,
            norms=norms,
            queues=tuple(self.queues),
            replicas=replicas,
            cell=self.cell,
        )
        return schedule.with_slack(slack) if slack else schedule


def shared_options(method: Any, options: type[Any]) -> dict[str, Any]:
    """The options that a preset shares with its credit, by name."""
    return {f.name: getattr(method, f.name) for f in fields(options)}


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """The values as a tuple, if they are whole numbers from 0 on; one clear line otherwise."""
    hint = f"give one whole number for each stage, such as {name}=(2, 1, 0)"
    if isinstance(values, str):
        raise TypeError(f"{name}={values!r}: {hint}")
    given = tuple(of_type(name, values, Sequence, hint))
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={given}: {value!r} is not a whole number from 0 on")
    return given
