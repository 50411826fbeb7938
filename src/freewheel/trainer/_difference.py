"""How far the gradients that late stages apply are from the exact ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.corrections import Gradients
from freewheel.methods import Method, Pipeline
from freewheel.runtime import Before
from freewheel.stage import Stage, copied, loss_of, without_loss
from freewheel.trainer._callbacks import EpochEnd
from freewheel.trainer._trainer import Trainer


class GradientDifference(NamedTuple):
    """The difference between the gradient that a stage applies and the exact one, as a mean over batches.

    Args:
        difference: The norm of the difference.
        exact: The norm of the exact gradient.
        parameters: The number of parameters that the stage trains.
    """

    difference: float
    exact: float
    parameters: int

    @property
    def relative(self) -> float:
        """The difference in units of the exact gradient."""
        return self.difference / self.exact if self.exact else float("nan")

    @property
    def per_parameter(self) -> float:
        """The difference divided by the number of parameters, for stages of different sizes (figure 4 of DSP)."""
        return self.difference / self.parameters if self.parameters else float("nan")


class _Update(NamedTuple):
    """What a stage has made an update with, and the weights before it."""

    gradients: list[Tensor | None]
    weights: list[Tensor]


def gradient_difference(
    trainer: Trainer, batches: Iterable[Any], end: EpochEnd | None = None
) -> tuple[GradientDifference, ...]:
    """How far the gradient that each stage applies is from the exact one at the newest weights (DSP, section 5.4).

    Copies of the network and of its optimizers go on with these batches, under `simulate`. Update n of a stage applies
    the gradient g of batch n, corrections included and clipping not. The exact gradient ∇ is that of the same batch
    with all stages at version n, with the same random numbers. After the first batches, which fill the pipeline,
    ‖g - ∇‖ and ‖∇‖ are averaged over the others. Nothing is changed.

    Args:
        trainer: The trainer, with a method of the chain rule.
        batches: What a loader gives, at least one batch more than the largest delay.
        end: In a callback, what it got: the measurement begins at that cut. The pipeline is filled anew.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> from torch import nn
        >>> import freewheel as fw
        >>> _ = torch.manual_seed(0)
        >>> stages = [nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2)]
        >>> trainer = fw.Trainer(stages, method="fdg", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> batches = [(torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(3)]
        >>> [0 < each.relative < 1 for each in fw.gradient_difference(trainer, batches)]
        [True, True]
    """
    batches = list(batches)
    first = _first(trainer, batches)
    states, before = _position(trainer, end)
    pipeline = trainer.method.over(trainer.config.replicas).pipeline(len(states))
    alike = Pipeline(delays=(0,) * len(states), micro=pipeline.micro, ahead=pipeline.ahead)
    modules = [stage.module for stage in trainer._stages] if end is None else end.stages
    late, exact = (_copy(trainer, modules, method, states) for method in (trainer.method, alike))
    late._before = before
    updates, found = [_noted(stage) for stage in late._stages], [_noted(stage) for stage in exact._stages]
    late.fit(batches, progress=False)
    norms: list[list[tuple[float, float]]] = []
    for n in range(first, len(batches)):
        _move(exact, [each[n].weights for each in updates])
        exact._before = Before(before.batches + n, before.epochs)
        for each in found:
            each.clear()
        exact.fit([batches[n]], progress=False)
        norms.append([_norms(ours[n].gradients, theirs[-1].gradients) for ours, theirs in zip(updates, found)])
    sizes = [sum(weight.numel() for weight in stage.weights.live) for stage in exact._stages]
    means = torch.tensor(norms, dtype=torch.float64).mean(0).tolist()
    return tuple(GradientDifference(apart, norm, size) for (apart, norm), size in zip(means, sizes))


def _position(trainer: Trainer, end: EpochEnd | None) -> tuple[Sequence[Any], Before]:
    """The state of each stage, and what has been trained until then."""
    if end is not None and end.position is not None and end.position.states:
        return end.position.states, end.position.before
    if end is not None or trainer._running:
        raise ValueError(
            "gradient_difference takes end in the callback that got it, and nowhere else: give it while fit is "
            "running, and leave it out afterwards"
        )
    return [stage.state() for stage in trainer._stages], trainer._before


def _first(trainer: Trainer, batches: Sequence[Any]) -> int:
    """The first batch for which every stage is as late as its delay says."""
    if trainer.plan is None or trainer._setup.options.credit.family != "chain":
        raise ValueError(
            f"gradient_difference with method={trainer.method.name!r}: it compares gradients of the chain rule; for "
            "the angle between others and the exact one use fw.alignment"
        )
    collecting = next((c for c in trainer._setup.options.corrections if c.collects), None)
    if collecting is not None:
        raise ValueError(
            f"gradient_difference with {type(collecting).__name__}: a step is made with the gradients of several "
            "batches; measure without it"
        )
    late = max(trainer.plan.delays)
    if len(batches) <= late:
        raise ValueError(
            f"batches has {len(batches)}, but the first stage is {late} batches late: give {late + 1} or more"
        )
    return late


def _copy(trainer: Trainer, modules: Sequence[nn.Module], method: Method, states: Sequence[Any]) -> Trainer:
    """A trainer of copies of these stages and the loss, in these states."""
    config = trainer.config
    own, loss = copied(([without_loss(module) for module in modules], loss_of(modules[-1], config.loss)))
    changed = {"runtime": "simulate", "method": method, "loss": loss, "check": False, "slow": None}
    changed |= dict.fromkeys(("compile", "overlap"), False)
    if config.scheduler_every == "epoch":  # within an epoch it changes nothing
        changed["scheduler"] = None
    copy = Trainer(own, **{f.name: getattr(config, f.name) for f in fields(config)} | changed)
    kept = [stage.blueprint.kept for stage in trainer._stages]
    if any(kept):  # frozen parameters that the optimizers know
        copy._stages = [replace(stage.blueprint, kept=names).build() for stage, names in zip(copy._stages, kept)]
    for stage, state in zip(copy._stages, states, strict=True):
        stage.load(deepcopy(state))  # an optimizer holds on to what it loads
    return copy


def _move(trainer: Trainer, weights: Sequence[Sequence[Tensor]]) -> None:
    """Give each stage these weights."""
    with torch.no_grad():
        for stage, values in zip(trainer._stages, weights, strict=True):
            for weight, value in zip(stage.weights.live, values, strict=True):
                weight.copy_(value)


def _noted(stage: Stage) -> list[_Update]:
    """Note each update of a stage."""
    found: list[_Update] = []
    correct = stage.corrections.update

    def update(gradients: Gradients, weights: Sequence[Tensor], stale_weights: Sequence[Tensor]) -> Any:
        step = correct(gradients, weights, stale_weights)
        copies = [None if g is None else g.clone() for g in step.gradients]
        found.append(_Update(copies, [w.detach().clone() for w in weights]))
        return step

    stage.corrections.update = update
    return found


def _norms(found: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> tuple[float, float]:
    """The norm of a difference, and that of the exact gradient; None is zero."""
    ours, theirs = ([torch.zeros(()) if g is None else g.to_dense() for g in each] for each in (found, exact))
    both = [ours - theirs.to(ours.device) for ours, theirs in zip(ours, theirs, strict=True)], theirs
    apart, whole = (math.hypot(*[torch.linalg.vector_norm(t).item() for t in each]) for each in both)
    return apart, whole
