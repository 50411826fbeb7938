"""What a stage is built from, in this process or in another one."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from freewheel._config import OptimizerFactory, RunConfig, SchedulerFactory
from freewheel.corrections import Correction
from freewheel.plan import Schedule
from freewheel.stage._trees import homes

if TYPE_CHECKING:
    from freewheel.credit import Credit
    from freewheel.stage._stage import Stage


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """What all stages of a run share."""

    schedule: Schedule
    corrections: tuple[Correction, ...] = ()
    config: RunConfig

    @property
    def credit(self) -> Credit:
        """Where the learning signal comes from."""
        return self.schedule.credit  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A stage, not yet built. The optimizer and its scheduler are made where the stage lives.

    Args:
        index: The stage's number.
        module: The stage's part of the network.
        device: Where it computes.
        options: What all stages share.
        optimizer: The factory of the stage's optimizer; None where there is nothing to train.
        scheduler: The factory of its scheduler, if there is one.
        names: The names of the module's parameters in the whole network, None for one that has none.
        replica: Which replica the stage belongs to; that of a later replica has a copy of the module.
    """

    index: int
    module: nn.Module
    device: torch.device
    options: StageOptions
    optimizer: OptimizerFactory | None
    scheduler: SchedulerFactory | None
    names: tuple[str | None, ...]
    replica: int = 0

    def build(self) -> Stage:
        """Builds the stage."""
        return self.options.credit.build(self)

    def make_optimizer(
        self, factory: OptimizerFactory, module: nn.Module
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        """Makes an optimizer for a module of this stage, and its scheduler."""
        optimizer = factory([p for p in module.parameters() if p.requires_grad])
        if not isinstance(optimizer, torch.optim.Optimizer):
            came = type(optimizer).__name__
            raise TypeError(f"optimizer gave a {came} for stage {self.index}, not a torch.optim.Optimizer")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "optimizer gave an LBFGS, which runs the network again within a step: use one that does not"
            )
        return _vectorized(optimizer), None if self.scheduler is None else self.scheduler(optimizer)

    def check_picklable(self) -> None:
        """Refuses what cannot be sent to another process, by its name."""
        travelling = {
            "loss": self.options.config.loss,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "method": (self.options.credit, self.options.corrections),
            f"stages[{self.index}]": self.module,
        }
        for name, value in travelling.items():
            try:
                pickle.dumps(value)
            except Exception as error:  # pickle raises whatever the object does
                reason = str(error).strip().split("\n")[0]
                raise TypeError(
                    f"{name} cannot be sent to another process ({reason}): define its functions and classes at the "
                    "top of a module (functools.partial in place of a lambda), or use runtime='threads'"
                ) from None


def _vectorized(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer, going through its parameters in C++ and not in Python, unless the user chose.

    Those named here do the very same arithmetic either way; on CPU, torch's default is the Python loop, which would
    hold up the other stages' threads.
    """
    if type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for group in optimizer.param_groups:
            if group["foreach"] is None and not group["fused"] and not group["differentiable"]:
                group["foreach"] = True
    return optimizer


def blueprints(modules: Sequence[nn.Module], model: nn.Module, options: StageOptions) -> list[Blueprint]:
    """Those of all stages, replica by replica; `model` is the whole network."""
    names = {id(p): name for name, p in model.named_parameters()}
    factories = _factories(options.config.optimizer, modules)
    return [
        Blueprint(
            index=k,
            module=module,
            device=home,
            options=options,
            optimizer=factories[k],
            scheduler=options.config.scheduler,
            names=tuple(names.get(id(p)) for p in module.parameters()),
            replica=replica,
        )
        for replica in range(options.schedule.replicas)
        for k, (module, home) in enumerate(zip(modules, homes(modules)))
    ]


def factory_of(config: RunConfig, stage: int) -> OptimizerFactory | None:
    """The optimizer factory that the user gave for a stage."""
    given: Any = config.optimizer
    return given.get(stage) if isinstance(given, Mapping) else given


def _factories(given: Any, stages: Sequence[nn.Module]) -> list[OptimizerFactory | None]:
    """The factory of each stage's optimizer, None for a stage that has nothing to train."""
    if isinstance(given, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(given).__name__} that exists already: give a factory for each stage's own, such "
            "as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    by_stage = given if isinstance(given, Mapping) else dict.fromkeys(range(len(stages)), given)
    for key in by_stage:
        if key not in range(len(stages)):
            raise ValueError(f"optimizer has a factory for stage {key!r}, but the stages are 0 to {len(stages) - 1}")
    out: list[Any] = []
    for k, stage in enumerate(stages):
        parameters = [p for p in stage.parameters() if p.requires_grad]
        if parameters and k not in by_stage:
            raise ValueError(f"optimizer has no factory for stage {k}, which has {len(parameters)} parameters to train")
        make: Any = by_stage[k] if parameters else None
        if make is not None and not callable(make):
            raise TypeError(f"optimizer={make!r}: give a factory such as functools.partial(torch.optim.SGD, lr=0.1)")
        out.append(make)
    if not any(out):
        raise ValueError("no stage has a parameter that requires a gradient: there is nothing to train")
    return out
