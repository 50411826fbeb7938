"""What a trainer asks of its arguments, each refusal one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from freewheel._errors import whole_number
from freewheel.methods import Pipeline, Racing
from freewheel.plan import Schedule
from freewheel.stage import Accumulate, Correction

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def check_stages(stages: object) -> list[nn.Module]:
    """The stages as a list, if they are modules that share nothing."""
    if isinstance(stages, nn.Module):
        raise TypeError(
            f"stages is one {type(stages).__name__}: cut it first, fw.split(model, k, example=x), or give [model]"
        )
    if not isinstance(stages, Sequence) or isinstance(stages, str):
        raise TypeError(f"stages={stages!r}: give a list of modules, such as fw.split(model, k, example=x)")
    if not stages:
        raise ValueError("stages is empty: give at least one module")
    owner: dict[int, tuple[int, str]] = {}
    for k, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stages[{k}] is a {type(stage).__name__}, not a torch.nn.Module")
        for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
            other, theirs = owner.setdefault(id(tensor), (k, name))
            if other != k:
                raise ValueError(
                    f"stages {other} and {k} share a parameter or buffer ({theirs!r} and {name!r}): each stage must "
                    "own its weights alone; put both uses into one stage, or give one of them a copy"
                )
    return list(stages)


def check_factories(
    factory: OptimizerFactory | Mapping[int, OptimizerFactory], stages: Sequence[nn.Module]
) -> list[OptimizerFactory | None]:
    """The factory of each stage's optimizer, None for a stage that has nothing to train."""
    if isinstance(factory, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(factory).__name__} that exists already: give a factory for each stage's own, such "
            "as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    if isinstance(factory, Mapping):
        for key in factory:
            if key not in range(len(stages)):
                raise ValueError(
                    f"optimizer has a factory for stage {key!r}, but the stages are 0 to {len(stages) - 1}"
                )
    out: list[OptimizerFactory | None] = []
    for k, stage in enumerate(stages):
        parameters = [p for p in stage.parameters() if p.requires_grad]
        if not parameters:
            out.append(None)
            continue
        if isinstance(factory, Mapping) and k not in factory:
            raise ValueError(f"optimizer has no factory for stage {k}, which has {len(parameters)} parameters to train")
        make = factory[k] if isinstance(factory, Mapping) else factory
        if not callable(make):
            raise TypeError(f"optimizer={make!r}: give a factory such as functools.partial(torch.optim.SGD, lr=0.1)")
        out.append(make)  # pyright: ignore[reportArgumentType]
    if not any(out):
        raise ValueError("no stage has a parameter that requires a gradient: there is nothing to train")
    return out


def head_factories(
    factory: OptimizerFactory | Mapping[int, OptimizerFactory], pipeline: Pipeline, stages: int
) -> list[OptimizerFactory | None]:
    """The factory for each stage's head or predictor: the method's own, or the stage's."""
    own = (pipeline.heads if pipeline.credit == "local" else pipeline.predictors).optimizer
    if own is not None:
        return [own] * stages
    return [factory.get(k) if isinstance(factory, Mapping) else factory for k in range(stages)]


def check_classes(pipeline: Pipeline, stages: Sequence[nn.Module]) -> int:
    """How many outputs heads have, or labels predictors see; 0 where nobody asks."""
    asked = pipeline.credit == "local" or (pipeline.credit == "synthetic" and pipeline.predictors.labels)
    if not asked or len(stages) == 1:
        return 0
    given = pipeline.heads.classes if pipeline.credit == "local" else pipeline.predictors.classes
    if given is not None:
        return given
    layers = [part for stage in stages for part in stage.modules()]
    widths = [getattr(layer, "out_features", getattr(layer, "out_channels", None)) for layer in layers]
    known = [width for width in widths if isinstance(width, int)]
    if not known:
        raise ValueError(
            f"{pipeline.title} cannot see how many outputs the network has, since no layer of it says: give classes"
        )
    return known[-1]


def make_optimizer(make: OptimizerFactory, k: int, stage: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a stage."""
    optimizer = make([p for p in stage.parameters() if p.requires_grad])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer gave a {type(optimizer).__name__} for stage {k}, not a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer gave an LBFGS, which runs the network again within a step: use one that does not")
    return _in_one_go(optimizer)


def _in_one_go(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer, told to go through its parameters in C++ and not in Python, unless the user chose.

    Those named here do the very same arithmetic either way; on CPU, torch's default is the Python loop, which would
    hold up the other stages' threads.
    """
    if type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for group in optimizer.param_groups:
            if group["foreach"] is None and not group["fused"] and not group["differentiable"]:
                group["foreach"] = True
    return optimizer


def check_clip(clip: object, scope: object, schedule: Schedule, corrections: Sequence[Correction]) -> None:
    """Clipping by the norm of each stage always makes sense; by the global norm only where stages are in step."""
    if scope not in ("stage", "global"):
        raise ValueError(f"clip_scope={scope!r}: give 'stage' or 'global'")
    if clip is None:
        if scope == "global":
            raise ValueError("clip_scope='global' without a clip: give the largest norm as well, such as clip=1.0")
        return
    if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0:
        raise ValueError(f"clip={clip!r}: give the largest gradient norm, a number above 0")
    if scope == "global" and any(isinstance(correction, Accumulate) for correction in corrections):
        raise ValueError(
            "clip_scope='global' with Accumulate: the norm over all stages is that of one batch, not of those "
            "collected; clip each stage by its own norm (clip_scope='stage')"
        )
    if scope == "global" and schedule.asynchronous:
        raise ValueError(
            f"clip_scope='global' with {schedule.name} (delays={schedule.delays}): at no time do the stages hold "
            "gradients of the same batch, so the norm over all of them does not exist before some have been updated; "
            "clip each stage by its own norm (clip_scope='stage')"
        )


def check_race(method: Racing, runtime: str, **given: bool) -> None:
    """Workers that race have no stages to shape and no order of updates to promise anything about."""
    if runtime not in method.runtimes:
        raise ValueError(
            f"runtime={runtime!r} with {method.name}: it runs on {' or '.join(map(repr, method.runtimes))}"
        )
    if method.replay is not None and runtime != "simulate":
        raise ValueError(f"replay with runtime={runtime!r}: a recording is followed under runtime='simulate' alone")
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} with {method.name}: a method that races on shared weights has none; leave it out")


def check_replicas(replicas: int, pipeline: Pipeline) -> None:
    """With several, replicas must be able to tell each other all that they have found in a few numbers."""
    if replicas == 1 or pipeline.credit in ("chain", "local", "feedback"):
        return
    if pipeline.credit == "synthetic":
        raise ValueError(
            f"replicas={replicas} with {pipeline.title}: each replica would fit a predictor of its own; use 'dgl', or "
            "one replica"
        )
    tangents = pipeline.tangents
    if tangents.perturb != "weights":
        raise ValueError(
            f"perturb={tangents.perturb!r} with replicas={replicas}: what moved is in one replica alone, so that the "
            "others cannot rebuild its gradient; use perturb='weights'"
        )
    if tangents.direction is not None:
        raise ValueError(f"direction with replicas={replicas}: every replica has tangents of its own; leave it out")
    if pipeline.along:
        raise ValueError(
            f"steps={pipeline.micro} with replicas={replicas}: sequences are cut along time or shared out to replicas, "
            "not both; leave one out"
        )


def check_autocast(dtype: Any, schedule: Schedule) -> None:
    """Only bfloat16, and not where autograd must find the weights again."""
    if dtype is None:
        return
    if dtype is not torch.bfloat16:
        raise ValueError(f"autocast={dtype!r}: only torch.bfloat16 is supported (float16 would need a gradient scaler)")
    if schedule.weights == "current" and schedule.asynchronous:
        raise ValueError(
            f"autocast with weights='current' ({schedule.name}): a late backward would see the bfloat16 copies "
            "made at its forward, not the newest weights; use weights='stash' or 'recompute', or no autocast"
        )


def check_slow(name: str, slow: object, stages: int) -> dict[int, tuple[float, float]]:
    """Stragglers by stage, each a probability and a factor."""
    if slow is None:
        return {}
    if not isinstance(slow, Mapping):
        raise TypeError(f"{name}={slow!r}: give {{stage: (probability, factor)}}, such as {{0: (0.3, 0.5)}}")
    out: dict[int, tuple[float, float]] = {}
    for stage, pair in slow.items():
        if isinstance(stage, bool) or not isinstance(stage, int) or stage not in range(stages):
            raise ValueError(f"{name} has stage {stage!r}, but the stages are 0 to {stages - 1}")
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all(_is_number(value) for value in pair):
            raise TypeError(f"{name}[{stage}]={pair!r}: give a probability and a factor, such as (0.3, 0.5)")
        probability, factor = pair
        if not 0 <= probability <= 1:
            raise ValueError(f"{name}[{stage}]: the probability is {probability:g}, give one from 0 to 1")
        if not 0 <= factor < math.inf:
            raise ValueError(f"{name}[{stage}]: the factor is {factor:g}, give 0 or more (0.5: half as long again)")
        out[stage] = float(probability), float(factor)
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_fit(loader: object, epochs: object, callbacks: Sequence[object], *, unfinished: int | None) -> None:
    """A number of passes, something to iterate, functions; and the same number where a fit goes on."""
    whole_number("epochs", epochs, least=1)
    if not isinstance(loader, Iterable):
        raise TypeError(
            f"loader is a {type(loader).__name__}: give something that can be iterated, of (input, target) pairs"
        )
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(f"callbacks holds {callback!r}: give functions of an EpochEnd")
    if unfinished not in (None, epochs):
        raise ValueError(
            f"epochs={epochs}: this trainer was resumed in the middle of a fit of {unfinished}; give "
            f"epochs={unfinished} to go on with it"
        )


def check_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name}={value!r}: give a number of seconds above 0")
    return float(value)
