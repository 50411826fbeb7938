"""What a stage is built from, here or in a process of its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from freewheel.plan import Credit
from freewheel.stage import (
    AlignedStage,
    ChainStage,
    FeedbackStage,
    ForwardStage,
    HeadedStage,
    Layers,
    LocalStage,
    Recurrent,
    Stage,
    StageOptions,
    SyntheticStage,
    homes,
)
from freewheel.trainer._checks import OptimizerFactory, make_optimizer

SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
KINDS: dict[Credit, type[Stage]] = {
    "chain": ChainStage,
    "forward": ForwardStage,
    "local": LocalStage,
    "synthetic": SyntheticStage,
    "feedback": FeedbackStage,
}


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A stage, not yet built. The optimizer and its scheduler are made where the stage lives."""

    index: int
    module: nn.Module
    device: torch.device
    options: StageOptions
    optimizer: OptimizerFactory | None
    scheduler: SchedulerFactory | None
    head_optimizer: OptimizerFactory | None  # of a head or a predictor
    names: tuple[str | None, ...]  # of the module's parameters, in the whole network
    recurs_later: bool  # whether a later stage has recurrent layers
    replica: int = 0
    layers: Layers | None = None  # under feedback

    def build(self) -> Stage:
        """The stage; that of a later replica has a copy of the module."""
        module = deepcopy(self.module) if self.replica else self.module
        optimizer = None if self.optimizer is None else make_optimizer(self.optimizer, self.index, module)
        scheduler = None if self.scheduler is None or optimizer is None else self.scheduler(optimizer)
        credit = self.options.schedule.credit
        kind = AlignedStage if credit == "chain" and self.options.feedback is not None else KINDS[credit]
        stage = kind(self.index, module, self.device, self.options, optimizer, scheduler, replica=self.replica)
        if isinstance(stage, ForwardStage):
            pairs = zip(module.parameters(), self.names)
            stage.name_parameters({id(p): name for p, name in pairs if name is not None})
            stage.recurs_later = self.recurs_later
        if isinstance(stage, HeadedStage):
            stage.equip(self._head_parts)
        if isinstance(stage, (AlignedStage, FeedbackStage)):
            assert self.layers is not None
            stage.number_layers(self.layers)
        return stage

    def _head_parts(self, head: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        """The optimizer and the scheduler of a head or a predictor."""
        if self.head_optimizer is None:
            raise ValueError(
                f"optimizer has no factory for stage {self.index}, whose predictor has parameters to train: give one, "
                "or give the method an optimizer for predictors"
            )
        optimizer = make_optimizer(self.head_optimizer, self.index, head)
        return optimizer, None if self.scheduler is None else self.scheduler(optimizer)

    def check_travels(self) -> None:
        """Refuses what cannot be taken to another process, by its name."""
        parts = {
            "loss": self.options.loss,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "method": (
                self.options.tangents,
                self.options.corrections,
                self.options.heads,
                self.options.predictors,
                self.options.feedback,
            ),
            f"stages[{self.index}]": self.module,
        }
        for name, value in parts.items():
            try:
                pickle.dumps(value)
            except Exception as error:  # pickle raises whatever the object does
                reason = str(error).strip().split("\n")[0]
                raise TypeError(
                    f"{name} cannot be taken to another process ({reason}): define its functions and classes at the "
                    "top of a module (functools.partial in place of a lambda), or use runtime='threads'"
                ) from None


def blueprints(
    modules: Sequence[nn.Module],
    model: nn.Module,
    options: StageOptions,
    optimizers: Sequence[OptimizerFactory | None],
    head_optimizers: Sequence[OptimizerFactory | None],
    scheduler: SchedulerFactory | None,
    layers: Sequence[Layers] = (),
) -> list[Blueprint]:
    """Those of all stages, replica by replica; `model` is the whole network, `layers` are those with feedback."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        Blueprint(
            index=k,
            module=module,
            device=home,
            options=options,
            optimizer=optimizers[k],
            scheduler=scheduler,
            head_optimizer=head_optimizers[k],
            names=tuple(names.get(id(p)) for p in module.parameters()),
            recurs_later=any(isinstance(part, Recurrent) for m in modules[k + 1 :] for part in m.modules()),
            replica=replica,
            layers=layers[k] if layers else None,
        )
        for replica in range(options.schedule.replicas)
        for k, (module, home) in enumerate(zip(modules, homes(modules)))
    ]
