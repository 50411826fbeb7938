"""What a stage trains, between two fits: parameters that were frozen or unfrozen since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler

from freewheel.stage._blueprint import Blueprint, factory_of
from freewheel.stage._stage import Stage
from freewheel.stage._state import step_scheduler
from freewheel.stage._weights import Live


def retrained(stages: Sequence[Stage], blueprints: Sequence[Blueprint]) -> list[Blueprint]:
    """Give each optimizer the parameters that were unfrozen, and return blueprints of stages that have them.

    An optimizer keeps the state of all others, of frozen ones too, and its step size. Gradients that a loop of the
    user's has left on the weights are dropped, as by `zero_grad`.
    """
    if not any(p.requires_grad for stage in stages for p in stage.module.parameters()):
        raise ValueError("no stage has a parameter that requires a gradient: there is nothing to train")
    steps = [_steps(stage.scheduler) for stage in stages if stage.scheduler is not None]
    for stage in stages:
        _check_change(stage)
    for stage in stages:
        _update(stage, max(steps, default=0))
        if not stage.collects:
            for parameter in stage.module.parameters():
                parameter.grad = None
    own = {stage.index: stage.blueprint for stage in stages}
    return [replace(b, kept=own[b.index].kept, optimizer=own[b.index].optimizer) for b in blueprints]


def _check_change(stage: Stage) -> None:
    """Reject a change that state of the stage does not allow."""
    before, now = stage.weights.live, [p for p in stage.module.parameters() if p.requires_grad]
    changed = {id(p) for p in before} ^ {id(p) for p in now}
    name = next((name for name, p in stage.module.named_parameters() if id(p) in changed), None)
    if name is None:
        return
    if stage.collects:
        raise ValueError(
            f"stage {stage.index}: {name!r} was frozen or unfrozen in the middle of an accumulation; do it after a "
            "number of batches that the accumulation divides"
        )
    if stage.corrections.has_state:
        raise ValueError(
            f"stage {stage.index}: {name!r} was frozen or unfrozen, but the method's corrections have a state for each "
            "weight; make a new trainer"
        )


def _update(stage: Stage, steps: int) -> None:
    """Give a stage's optimizer its unfrozen parameters; `steps` is how far the schedulers of the others are."""
    optimizer, parameters = stage.optimizer, list(stage.module.parameters())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer else set()
    kept = tuple(i for i, p in enumerate(parameters) if id(p) in held and not p.requires_grad)
    blueprint = replace(stage.blueprint, kept=kept)
    if any(p.requires_grad and id(p) not in held for p in parameters):
        factory = factory_of(stage.config, stage.index)
        if factory is None:
            raise ValueError(f"optimizer has no factory for stage {stage.index}, which was unfrozen: give one")
        blueprint = replace(blueprint, optimizer=factory)
        if optimizer is None:
            stage.optimizer, stage.scheduler = blueprint.make_optimizer(factory, blueprint.named(stage.module))
            _advance(stage, steps)
        else:
            fresh, _ = replace(blueprint, scheduler=None).make_optimizer(factory, blueprint.named(stage.module))
            _regroup(stage, optimizer, fresh)
    stage.blueprint, stage.weights = blueprint, Live(stage.module)


def _steps(scheduler: LRScheduler) -> int:
    """How often a scheduler has been stepped."""
    if isinstance(scheduler, ChainedScheduler):
        return max(map(_steps, scheduler._schedulers))
    return scheduler.last_epoch


def _advance(stage: Stage, steps: int) -> None:
    """Bring the scheduler of a stage that was frozen to where the others are."""
    if stage.scheduler is not None and stage.optimizer is not None:
        stage.optimizer.step()  # a no-op without gradients; torch warns if a scheduler steps first
        for _ in range(steps):
            step_scheduler(stage.scheduler)


def _regroup(stage: Stage, optimizer: torch.optim.Optimizer, fresh: torch.optim.Optimizer) -> None:
    """Give an optimizer the parameters of a fresh one, group by group, with the settings that its groups have."""
    groups: list[dict[str, Any]] = []
    for group in fresh.param_groups:
        ids = {id(p) for p in group["params"]}
        old = next((g for g in optimizer.param_groups if any(id(p) in ids for p in g["params"])), {})
        settings = {name: value for name, value in old.items() if name not in ("params", "param_names")}
        groups.append({**group, **settings})
    if stage.scheduler is not None and len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"stage {stage.index}: the unfrozen parameters are a new group of the optimizer, for which its scheduler "
            "has no step size; make a new trainer"
        )
    optimizer.param_groups[:] = groups
