"""What a trainer is made of: its configuration, its plan, and a blueprint for each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

from freewheel._config import RunConfig, check_stragglers
from freewheel._cores import share
from freewheel._errors import of_type, one_of, unknown
from freewheel.check import check_network
from freewheel.corrections import Accumulate
from freewheel.credit import Credit
from freewheel.methods import Method, Pipeline, method as find_method
from freewheel.plan import Plan, Schedule
from freewheel.runtime import RUNTIMES, Batch, Before, RuntimeChoice
from freewheel.split import borrowed
from freewheel.stage import Blueprint, StageOptions, blueprints, store_channels_last, with_loss
from freewheel.trainer._callbacks import StageSequence

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class Setup:
    """What a trainer consists of."""

    config: RunConfig  # with defaults and names resolved
    threads: int  # intra-op threads of each stage
    method: Method
    plan: Plan | None  # None for a method that has none
    options: StageOptions
    blueprints: Sequence[Blueprint]  # of all stages, replica by replica
    model: nn.Module  # the whole network
    choice: RuntimeChoice  # of the runtime

    def check(self, batch: Batch | None, before: Before) -> None:
        """Refuse a network whose stages compute something else than the whole."""
        stages = self.blueprints[: self.options.schedule.stages]
        if batch is not None:
            sequential, planned = isinstance(self.model, StageSequence), self.method.planned
            check_network(self.model, stages, batch, before, sequential=sequential, planned=planned)


def set_up(modules: Sequence[nn.Module], model: nn.Module, config: RunConfig, seconds: Sequence[float] = ()) -> Setup:
    """Collect the options of a trainer, and refuse those that cannot be combined.

    `seconds` are those of each stage's step, where the split has measured them.
    """
    one_of("runtime", config.runtime, RUNTIMES)
    method = find_method(config.method)
    if config.runtime == "auto" and not method.planned:
        config = replace(config, runtime=method.default_runtime)
    method.check_run(config)
    threads = config.threads or share(method.total_workers(len(modules) * config.replicas))
    slow = check_stragglers("slow", config.slow, len(modules))
    config = replace(config, method=method, threads=threads, slow=slow)
    pipeline = method.over(config.replicas).stage_pipeline(len(modules))
    _check_tied(modules, method, pipeline.credit)
    pipeline = replace(pipeline, credit=pipeline.credit.bind(modules))
    if config.accumulate > 1:
        pipeline = _accumulating(pipeline, config)
    modules = with_loss(modules, config.loss)
    if config.compile:
        pipeline.credit.check_compiled()
        store_channels_last(modules)
    if config.replicas > 1:
        pipeline.credit.check_replicas(config.replicas, pipeline)
    schedule = pipeline.schedule(slack=config.slack, norms=config.clips_globally, replicas=config.replicas)
    _check_together(config, schedule, pipeline)
    plan = Plan.build(schedule, settled(schedule)) if method.planned else None
    options = StageOptions(schedule=schedule, corrections=tuple(pipeline.corrections), config=config.for_workers())
    choice = RUNTIMES[config.runtime].choose(config, blueprints(modules, model, options), seconds)
    config = replace(config, runtime=choice.name)
    options = replace(options, config=config.for_workers())
    return Setup(config, threads, method, plan, options, blueprints(modules, model, options), model, choice)


def _accumulating(pipeline: Pipeline, config: RunConfig) -> Pipeline:
    """The same pipeline with one step for several batches."""
    if pipeline.credit.family not in Accumulate.credits:
        raise ValueError(
            f"accumulate={config.accumulate} with {pipeline.title}: credit={pipeline.credit.name!r} cannot collect "
            "gradients; give larger batches instead"
        )
    return replace(pipeline, corrections=(*pipeline.corrections, Accumulate(config.accumulate)))


def settled(schedule: Schedule) -> int:
    """A number of batches after which a plan has repeated itself, and shows every rule kept."""
    return 2 * (max(schedule.delays) + schedule.credit.lag + schedule.stages) + 2


def _check_tied(modules: Sequence[nn.Module], method: Method, credit: Credit) -> None:
    """Refuse weights that several stages use where their learning signal would not come together."""
    names = borrowed(modules)
    if names and not credit.ties:
        raise ValueError(
            f"method={method.name!r} with {names[0]!r}, which several stages use: its gradient would lack the part of "
            "the later ones; untie it, cut so that one stage has all of its uses (at=[...]), or train with 'pipedream'"
        )


def _check_together(config: RunConfig, schedule: Schedule, pipeline: Pipeline) -> None:
    """Refuse what a method cannot do with these options."""
    if config.clips_globally and any(correction.collects for correction in pipeline.corrections):
        raise ValueError(
            "clip_scope='global' with Accumulate: the norm over all stages is that of one batch, not of those "
            "collected; clip each stage by its own norm (clip_scope='stage')"
        )
    if config.clips_globally and schedule.asynchronous:
        raise ValueError(
            f"clip_scope='global' with {schedule.name} (delays={schedule.delays}): at no time do the stages hold "
            "gradients of the same batch, so the norm over all of them does not exist before some have been updated; "
            "clip each stage by its own norm (clip_scope='stage')"
        )
    if config.overlap:
        pipeline.credit.check_overlap()
        # A forward, and the recomputation and backward after it in the plan, see the same version of the weights.
        same = schedule.weights == "recompute" and schedule.order == "forward" and schedule.asynchronous
        if not same or schedule.turns:
            raise ValueError(
                f"overlap=True with {schedule.name}: forwards run beside the recomputation and backward of an older "
                "batch, which takes a method that recomputes and has no locks, such as 'dsp'; leave overlap out"
            )
    if config.batch_dim and (schedule.micro > 1 or schedule.replicas > 1):
        raise ValueError(
            f"batch_dim={config.batch_dim} with {schedule.name}: micro-batches and replicas divide the first one, "
            "so put the samples there (batch_first=True)"
        )
    if config.autocast is not None and schedule.weights == "current" and schedule.asynchronous:
        raise ValueError(
            f"autocast with weights='current' ({schedule.name}): a late backward would see the bfloat16 copies "
            "made at its forward, not the newest weights; use weights='stash' or 'recompute', or no autocast"
        )


def check_stages(stages: object) -> list[nn.Module]:
    """The stages as a list, if they are modules that share nothing."""
    if isinstance(stages, nn.Module):
        raise TypeError(
            f"stages is one {type(stages).__name__}: cut it first, fw.split(model, k, example=x), or give [model]"
        )
    hint = "give a list of modules, such as fw.split(model, k, example=x)"
    if isinstance(stages, str):
        raise TypeError(f"stages={stages!r}: {hint}")
    modules = list(of_type("stages", stages, Sequence, hint))
    if not modules:
        raise ValueError("stages is empty: give at least one module")
    owner: dict[int, tuple[int, str]] = {}
    for k, stage in enumerate(modules):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stages[{k}] is a {type(stage).__name__}, not a torch.nn.Module")
        for name, child in stage.named_modules():
            if isinstance(child, torch.jit.ScriptModule):
                raise TypeError(
                    f"stages[{k}]: {name or 'it'} is compiled by torch.jit, which holds on to its weights: give the "
                    "module that was scripted or traced"
                )
        for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
            if tensor.is_meta:
                raise ValueError(
                    f"stages[{k}]: {name!r} is on the meta device and has no values: give it memory by "
                    "stage.to_empty(device='cpu') and initialize it, or load a state_dict with assign=True"
                )
            other, theirs = owner.setdefault(id(tensor), (k, name))
            if other != k:
                raise ValueError(
                    f"stages {other} and {k} share a parameter or buffer ({theirs!r} and {name!r}): each stage must "
                    "own its weights alone; put both uses into one stage, or give one of them a copy"
                )
    return modules


def takes_options(
    config: Callable[P, RunConfig],
) -> Callable[[Callable[[S, A, RunConfig], None]], Callable[Concatenate[S, A, P], None]]:
    """Give a constructor the options of a configuration as keyword arguments, each declared once."""
    known = signature(config).parameters

    def decorate(init: Callable[[S, A, RunConfig], None]) -> Callable[Concatenate[S, A, P], None]:
        @wraps(init)
        def wrapper(self: S, stages: A, **options: Any) -> None:
            for name in options:
                if name not in known:
                    raise TypeError(str(unknown("option of Trainer:", name, known)))
            missing = [
                name for name, option in known.items() if option.default is Parameter.empty and name not in options
            ]
            if missing:
                hint = "such as loss=F.cross_entropy, optimizer=functools.partial(torch.optim.SGD, lr=0.1)"
                raise TypeError(
                    f"Trainer without {' and '.join(missing)}: give {'both' if missing[1:] else 'it'}, {hint}"
                )
            init(self, stages, config(**options))  # pyright: ignore[reportCallIssue]

        own = signature(init)
        parameters = [*list(own.parameters.values())[:2], *known.values()]
        wrapper.__signature__ = own.replace(parameters=parameters)  # pyright: ignore
        return wrapper  # pyright: ignore[reportReturnType]

    return decorate
