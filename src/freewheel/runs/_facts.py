"""What is known of a run when it begins."""

from __future__ import annotations

import platform
from typing import Any

import torch

from freewheel._cores import cores
from freewheel.plan import Plan
from freewheel.trainer import Trainer

LOCKS = ("forward", "backward", "update")
FEWEST, MORE = 12, 4  # batches of the planned timeline: at least so many, and so many after the longest delay


def facts_of(trainer: Trainer) -> dict[str, Any]:
    """What a trainer trains and how, as plain data.

    Example:
        >>> from functools import partial
        >>> trainer = Trainer([torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)], method="fdg",
        ...                   loss=torch.nn.functional.cross_entropy, optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> facts = facts_of(trainer)
        >>> facts["method"]["delays"], facts["method"]["staleness"], facts["memory"][0], facts["timeline"]["cells"][0]
        ([2, 0], [1, 0], {'inputs': 0, 'graphs': 2, 'weights': 3}, [0, 'F', 0, None, 0, 0.0, 1.0])
    """
    method, plan, config = trainer.method, trainer.plan, trainer.config
    pipeline = method.over(config.replicas).stage_pipeline(len(trainer.stages))
    timeline = None if plan is None else _timeline(plan)
    optimizers = [type(optimizer).__name__ for optimizer in trainer.optimizers if optimizer is not None]
    return {
        "method": {
            "name": method.name,
            "credit": pipeline.credit.name,
            "with_options": repr(method),
            "delays": None if plan is None else list(plan.delays),
            "staleness": None if timeline is None else list(timeline.staleness),
            "order": None if plan is None else pipeline.order,
            "weights": "current" if plan is None else pipeline.weights,
            "corrections": [repr(correction) for correction in pipeline.corrections],
            "locks": None if plan is None else [lock for lock in LOCKS if lock in plan.locks],
        },
        "model": {"name": type(trainer.model()).__name__, "parameters": _parameters(trainer)},
        "optimizer": {"name": optimizers[0] if optimizers else None},
        "runtime": config.runtime,
        "stages": len(trainer.stages),
        "replicas": config.replicas,
        "threads_per_stage": config.threads,
        "devices": [str(device) for device in trainer.devices],
        "cores": cores(),
        "timeline": None if timeline is None else _cells(timeline),
        "memory": None if plan is None else [memory._asdict() for memory in plan.memory()],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _parameters(trainer: Trainer) -> int:
    """The number of parameters; what several stages share counts once."""
    found = {id(parameter): parameter for stage in trainer.stages for parameter in stage.parameters()}
    return sum(parameter.numel() for parameter in found.values())


def _timeline(plan: Plan) -> Plan:
    """The first batches of the plan, as far as they show how it goes on."""
    return Plan.build(plan.schedule, max(FEWEST, 2 * max(plan.delays) + MORE))


def _cells(timeline: Plan) -> dict[str, Any]:
    return {"batches": timeline.batches, "cells": [list(cell) for cell in timeline.cells()]}
