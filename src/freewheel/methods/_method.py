"""What a method is: credit, delays, weights and corrections; named methods are presets of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from freewheel._errors import unknown, whole_number
from freewheel.feedback import Feedback
from freewheel.plan import CREDITS, ORDERS, WEIGHTS, Credit, Order, Schedule, Weights
from freewheel.runtime import RUNTIMES, Outcome, Run
from freewheel.stage import Correction, Heads, Predictors
from freewheel.tangents import Tangents


class Method(ABC):
    """A way to train a network in stages. `pipeline` says it in the algebra's own terms, for K stages."""

    name: ClassVar[str]
    planned: ClassVar[bool] = True  # whether it has a plan

    @abstractmethod
    def pipeline(self, k: int) -> Pipeline:
        """The choices that make this method, for k stages."""

    def stage_pipeline(self, k: int) -> Pipeline:
        """The pipeline that the trainer's k stages are built for: by default that of the plan."""
        return self.pipeline(k)

    def over(self, replicas: int) -> Method:
        """The method that each of so many replicas follows on its own samples: by default this one."""
        return self

    def workers(self, stages: int) -> int:
        """How many workers compute at the same time, given the number of stages of all replicas."""
        return stages

    def check_run(self, runtime: str, **given: bool) -> None:  # noqa: B027
        """Refuses a runtime, and options that were given, which this method cannot do anything with."""

    def check_checkpoints(self, what: str) -> None:  # noqa: B027
        """Refuses checkpoints in the middle of a fit; `what` says what was asked for."""

    def runner(self, runtime: str, blueprints: Sequence[Any]) -> Callable[[Run], Outcome]:
        """Returns what runs a fit on this runtime; `blueprints` build the stages anew."""
        return RUNTIMES[runtime]


@dataclass(frozen=True, kw_only=True)
class Pipeline(Method):
    """A free combination of credit, delays, order, weights and corrections.

    Args:
        credit: Where a stage's learning signal comes from: `chain`, the gradient from the next stage; `forward`, a
            directional derivative from the last one; `local`, a head of its own; `synthetic`, a predicted gradient; or
            `feedback`, the error at the output, or the target.
        delays: For each stage, how many batches it has forwarded beyond the one it learns from; never increasing.
        order: Whether a round begins with its `forward` or with its `backward`.
        weights: Which weights a late backward sees: `stash` (those of its forward), `recompute` (the newest, the
            forward redone), `current` (the newest, with the stored activations) or `predict` (the forward runs on
            predicted ones, and the backward on the same).
        corrections: Transforms of the gradient or of the step, applied in this order.
        tangents: The directions of forward gradients, under `credit="forward"`.
        heads: The heads, under `credit="local"`.
        predictors: The predictors of gradients, under `credit="synthetic"`.
        feedback: What goes through fixed random weights, under `credit="feedback"`; or the gradient of each layer, with
            `fw.Feedback(signal="gradient")` under `chain`.
        micro: Micro-batches a batch is cut into; more than one needs zero delays under `chain`.
        along: The dimension they are cut along: 0, the samples; 1, time (under `forward`).
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
    """

    name: ClassVar[str] = "pipeline"

    credit: Credit = "chain"
    delays: Sequence[int]
    order: Order = "forward"
    weights: Weights = "stash"
    corrections: Sequence[Correction] = ()
    tangents: Tangents = field(default_factory=Tangents)
    heads: Heads = field(default_factory=Heads)
    predictors: Predictors = field(default_factory=Predictors)
    feedback: Feedback | None = None
    micro: int = 1
    along: Literal[0, 1] = 0
    ahead: Sequence[int] = ()
    turns: bool = False
    queues: Sequence[tuple[int, int]] = ()
    title: str = "pipeline"
    cell: Literal["action", "round"] = "action"

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("credit", self.credit, CREDITS),
            ("order", self.order, ORDERS),
            ("weights", self.weights, WEIGHTS),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        object.__setattr__(self, "delays", whole_numbers("delays", self.delays))
        object.__setattr__(self, "ahead", whole_numbers("ahead", self.ahead))
        if not isinstance(self.corrections, Sequence):
            raise TypeError(f"corrections={self.corrections!r}: give a list of them, such as [fw.Shrink(0.5)]")
        object.__setattr__(self, "corrections", tuple(self.corrections))
        pairs = isinstance(self.queues, Sequence) and all(isinstance(q, Sequence) and len(q) == 2 for q in self.queues)
        if not pairs:
            raise TypeError(f"queues={self.queues!r}: give a pair of lengths for each boundary, such as [(2, 2)]")
        object.__setattr__(self, "queues", tuple(whole_numbers("queues", pair) for pair in self.queues))
        for k, (here, after) in enumerate(zip(self.delays, self.delays[1:])):
            if after > here:
                raise ValueError(
                    f"delays={tuple(self.delays)}: stage {k + 1} would learn later ({after}) than stage {k} ({here}), "
                    "whose signal comes through it; delays must never increase"
                )
        whole_number("micro", self.micro, least=1)
        if self.credit == "chain" and self.micro > 1 and any(self.delays):
            raise ValueError(f"micro={self.micro}: micro-batches need zero delays, not delays={tuple(self.delays)}")
        if self.along not in (0, 1) or (self.along and self.credit != "forward"):
            raise ValueError(f"along={self.along!r}: give 0, the samples, or under credit='forward' 1, time")
        for name, kind, credit, of in (
            ("tangents", Tangents, "forward", "forward gradients"),
            ("heads", Heads, "local", "local losses"),
            ("predictors", Predictors, "synthetic", "synthetic gradients"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name}={value!r}: give fw.{kind.__name__}(...)")
            if self.credit != credit and value != kind():
                raise ValueError(f"{name} without {of}: they belong to credit={credit!r}")
        if self.credit == "forward" and self.weights != "stash":
            raise ValueError(f"weights={self.weights!r}: under credit='forward' no backward sees weights; leave it out")
        if self.credit in ("local", "synthetic"):
            self._check_at_once()
        self._check_feedback()
        if any(min(pair) < 1 for pair in self.queues):
            raise ValueError(f"queues={tuple(self.queues)}: every queue needs a length of 1 or more")
        for correction in self.corrections:
            if not isinstance(correction, Correction):
                raise TypeError(f"corrections holds a {type(correction).__name__}: give for instance fw.Shrink(0.5)")
            if self.credit not in correction.credits:
                raise ValueError(
                    f"{type(correction).__name__} has no meaning with credit={self.credit!r}: leave it out"
                )
            if correction.weights and self.weights not in correction.weights:
                raise ValueError(
                    f"{type(correction).__name__} has no meaning with weights={self.weights!r}: "
                    f"use weights={' or '.join(map(repr, correction.weights))}"
                )

    def _check_at_once(self) -> None:
        """Where a stage has its own signal it learns at once: there is nothing late, and nothing in pieces."""
        for name, value, plain in (
            ("delays", tuple(self.delays), (0,) * len(self.delays)),
            ("micro", self.micro, 1),
            ("weights", self.weights, "stash"),
        ):
            if value != plain:
                raise ValueError(
                    f"{name}={value!r}: under credit={self.credit!r} a stage learns from a batch at once; use "
                    f"{name}={plain!r}"
                )

    def _check_feedback(self) -> None:
        if self.feedback is not None and not isinstance(self.feedback, Feedback):
            raise TypeError(f"feedback={self.feedback!r}: give fw.Feedback(...)")
        direct = self.feedback is not None and self.feedback.signal != "gradient"
        if self.credit == "feedback" and not direct:
            raise ValueError(
                "credit='feedback' without anything that is fed back: give feedback=fw.Feedback(signal='error'), or "
                "'sign' or 'target'"
            )
        if self.feedback is not None and self.credit != ("feedback" if direct else "chain"):
            raise ValueError(
                f"feedback with signal={self.feedback.signal!r} under credit={self.credit!r}: 'gradient' goes with "
                "'chain', the others with 'feedback'"
            )
        if self.credit == "feedback" and self.micro > 1:
            raise ValueError(f"micro={self.micro}: under credit='feedback' a batch is taken whole; leave it out")

    @property
    def _taught(self) -> bool:
        """Whether every stage learns from the targets themselves."""
        return (
            self.credit == "local"
            or (self.credit == "synthetic" and self.predictors.labels)
            or (self.credit == "feedback" and self.feedback is not None and self.feedback.signal == "target")
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

    def schedule(self, *, slack: int = 0, norms: bool = False, replicas: int = 1, joined: bool = False) -> Schedule:
        """What the builders of plans need to know of it; `joined` where the stages cut a block of layers in two."""
        chain = self.credit == "chain"
        schedule = Schedule(
            name=self.title,
            credit=self.credit,
            delays=tuple(self.delays),
            order=self.order,
            weights=self.weights,
            micro=self.micro,
            along=self.along,
            ahead=tuple(self.ahead) or ((self.micro,) * len(self.delays) if chain and self.micro > 1 else ()),
            turns=self.turns,
            norms=norms,
            queues=tuple(self.queues),
            taught=self._taught,
            lag=self.predictors.lag if self.credit == "synthetic" else 0,
            joined=joined,
            replicas=replicas,
            cell=self.cell,
        )
        return schedule.with_slack(slack) if slack else schedule


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """The values as a tuple, if they are whole numbers from 0 on; one clear line otherwise."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name}={values!r}: give one whole number for each stage, such as {name}=(2, 1, 0)")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={tuple(values)}: {value!r} is not a whole number from 0 on")
    return tuple(values)
