"""What a trainer is made of: the plan, what all stages share, and a blueprint for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from freewheel._errors import whole_number
from freewheel.methods import Method, unraced
from freewheel.plan import Plan
from freewheel.stage import Loss, StageOptions
from freewheel.trainer._blueprint import Blueprint, SchedulerFactory, blueprints
from freewheel.trainer._checks import (
    OptimizerFactory,
    check_autocast,
    check_classes,
    check_clip,
    check_factories,
    check_replicas,
    check_slow,
    head_factories,
)
from freewheel.trainer._layers import numbered_layers


@dataclass(frozen=True)
class Setup:
    """A trainer's parts. The blueprints are those of all stages, replica by replica."""

    plan: Plan
    options: StageOptions
    blueprints: Sequence[Blueprint]


def set_up(
    modules: Sequence[nn.Module],
    model: nn.Module,
    method: Method,
    optimizer: OptimizerFactory | Mapping[int, OptimizerFactory],
    scheduler: SchedulerFactory | None,
    *,
    loss: Loss,
    seed: int,
    clip: float | None,
    clip_scope: str,
    autocast: torch.dtype | None,
    slack: int,
    replicas: int,
    slow: Mapping[int, tuple[float, float]] | None,
) -> Setup:
    """Brings the arguments of a trainer together, and refuses those that do not go together."""
    pipeline = unraced(method.over(replicas)).pipeline(len(modules))
    check_replicas(replicas, pipeline)
    layers, joined = numbered_layers(modules, pipeline.feedback)
    schedule = pipeline.schedule(
        slack=whole_number("slack", slack, least=0),
        norms=clip_scope == "global" and clip is not None,
        replicas=replicas,
        joined=joined,
    )
    check_clip(clip, clip_scope, schedule, pipeline.corrections)
    check_autocast(autocast, schedule)
    options = StageOptions(
        schedule=schedule,
        corrections=tuple(pipeline.corrections),
        tangents=pipeline.tangents,
        heads=pipeline.heads,
        predictors=pipeline.predictors,
        classes=check_classes(pipeline, modules),
        feedback=pipeline.feedback,
        loss=loss,
        clip=clip,
        autocast=autocast,
        seed=seed,
        slow=check_slow("slow", slow, len(modules)),
    )
    # A plan repeats itself after its start, so that one a few rounds longer than that shows every rule kept.
    plan = Plan.build(schedule, 2 * (max(schedule.delays) + schedule.lag + schedule.stages) + 2)
    factories = check_factories(optimizer, modules), head_factories(optimizer, pipeline, len(modules))
    return Setup(plan, options, blueprints(modules, model, options, *factories, scheduler, layers))
