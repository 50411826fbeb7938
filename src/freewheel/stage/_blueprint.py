"""Picklable descriptions from which stages are built, in this process or another."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from freewheel._config import OptimizerFactory, RunConfig, SchedulerFactory
from freewheel._errors import check_callable, of_type
from freewheel.corrections import Correction
from freewheel.plan import Schedule
from freewheel.stage._code import CompiledCode
from freewheel.stage._groups import make_watchable
from freewheel.stage._hooks import gradient_hooks, with_hooks
from freewheel.stage._trees import homes

if TYPE_CHECKING:
    from freewheel.credit import Credit
    from freewheel.stage._stage import Stage


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """The options that all stages of a run share."""

    schedule: Schedule
    corrections: tuple[Correction, ...] = ()
    config: RunConfig

    @property
    def credit(self) -> Credit:
        """The source of the learning signal."""
        return self.schedule.credit  # pyright: ignore[reportReturnType]

    def overlaps(self, stage: int) -> bool:
        """Whether the forwards of a stage may run beside its recomputations and backwards."""
        return self.config.overlap and self.schedule.delays[stage] > 0 and stage < self.schedule.stages - 1


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A stage before it is built. The optimizer and scheduler are created in the stage's process.

    Args:
        index: The stage's number.
        module: The stage's module.
        device: Its device.
        options: The options that all stages share.
        optimizer: The factory of the stage's optimizer; None if there is nothing to train.
        scheduler: The factory of its scheduler, if any.
        names: The names of the module's parameters in the whole network, None for a parameter without one.
        replica: The replica that the stage belongs to; replicas after the first copy the module.
        kept: The indices of frozen parameters that the optimizer has a state of, from before they were frozen.
        code: What is compiled of the stage in this process.
    """

    index: int
    module: nn.Module
    device: torch.device
    options: StageOptions
    optimizer: OptimizerFactory | None
    scheduler: SchedulerFactory | None
    names: tuple[str | None, ...]
    replica: int = 0
    kept: tuple[int, ...] = ()
    code: CompiledCode = field(default_factory=CompiledCode, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Take gradient hooks along, which parameters leave behind in other processes, and no compiled code."""
        return {**vars(self), "code": None, "hooks": gradient_hooks(self.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        hooks = state.pop("hooks")
        vars(self).update(state, code=CompiledCode())
        with_hooks(self.module, hooks)

    def build(self) -> Stage:
        """Build the stage."""
        return self.options.credit.build(self)

    def named(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters of this stage's module, or of a copy of it, that its optimizer has, by name."""
        full = zip(module.named_parameters(), self.names)
        named = [(name or own, p) for (own, p), name in full]
        return [(name, p) for i, (name, p) in enumerate(named) if p.requires_grad or i in self.kept]

    def make_optimizer(
        self, factory: OptimizerFactory, named: Sequence[tuple[str, nn.Parameter]]
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        """Build an optimizer for parameters of this stage, and its scheduler."""
        made = factory(list(named) if _takes_names(factory) else [p for _, p in named])
        call, hint = f"optimizer(parameters of stage {self.index})", "it must return a torch.optim.Optimizer"
        optimizer = of_type(call, made, torch.optim.Optimizer, hint)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("optimizer returned an LBFGS, which reruns the network within a step: use another one")
        for group in optimizer.param_groups:
            if torch.is_tensor(group.get("lr")):  # a scheduler changes it in place, and each stage has a scheduler
                group["lr"] = group["lr"].clone()
        optimizer = _vectorized(optimizer, compiled=self.options.config.compile)
        make_watchable(optimizer)  # before anyone refers to its groups
        return optimizer, None if self.scheduler is None else self.scheduler(optimizer)

    def check_picklable(self) -> None:
        """Reject anything that cannot be pickled, by name."""
        travelling = {
            "loss": self.options.config.loss,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "method": (self.options.credit, self.options.corrections),
            f"stages[{self.index}]": self.module,
            f"a gradient hook of stages[{self.index}]": gradient_hooks(self.module),
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


def _takes_names(factory: Any) -> bool:
    """Whether the first argument of a factory is called `named_parameters`.

    Example:
        >>> _takes_names(lambda named_parameters: None), _takes_names(torch.optim.SGD)
        (True, False)
    """
    try:
        first = next(iter(signature(factory).parameters), "")
    except ValueError:  # of a function that is not written in Python
        return False
    return first == "named_parameters"


def _vectorized(optimizer: torch.optim.Optimizer, *, compiled: bool) -> torch.optim.Optimizer:
    """Choose one call for all parameters in optimizers that have it, unless the user chose.

    On a CPU torch defaults to a Python loop over the parameters, which would block the threads of other stages. The two
    round differently in types of low precision.
    """
    if type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for group in optimizer.param_groups:
            chosen = group["foreach"] is not None or group["fused"] or group["differentiable"]
            exact = not any(p.dtype in (torch.bfloat16, torch.half) for p in group["params"])
            if not chosen and exact and not torch.is_tensor(group["lr"]):
                group["fused" if _fuses(optimizer, group["params"], compiled=compiled) else "foreach"] = True
    return optimizer


def _fuses(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], *, compiled: bool) -> bool:
    """Whether to choose the fused form, which takes no sparse gradients.

    On a CPU it is the fastest, but rounds differently; so do compiled stages, which have no sparse gradients. On a GPU
    that of Adam has the same bits in a CUDA graph, and no other form has; that of SGD has the bits of all its forms.
    """
    if not all(p.is_floating_point() for p in parameters):
        return False
    devices = {p.device.type for p in parameters}
    return (compiled and devices == {"cpu"}) or (type(optimizer) is not torch.optim.SGD and devices == {"cuda"})


def blueprints(modules: Sequence[nn.Module], model: nn.Module, options: StageOptions) -> list[Blueprint]:
    """Return the blueprints of all stages, replica by replica; `model` is the whole network."""
    names = {id(p): name for name, p in model.named_parameters()}
    factories = _factories(options.config.optimizer, modules)
    codes = [CompiledCode() for _ in modules]
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
            code=codes[k],
        )
        for replica in range(options.schedule.replicas)
        for k, (module, home) in enumerate(zip(modules, homes(modules)))
    ]


def factory_of(config: RunConfig, stage: int) -> OptimizerFactory | None:
    """Return the user's optimizer factory for a stage."""
    return _by_stage(config.optimizer, range(stage + 1)).get(stage)


def _by_stage(given: Any, stages: range) -> Mapping[int, Any]:
    return given if isinstance(given, Mapping) else dict.fromkeys(stages, given)


def _factories(given: Any, stages: Sequence[nn.Module]) -> list[OptimizerFactory | None]:
    """Return the optimizer factory of each stage, None for a stage without trainable parameters."""
    by_stage = _by_stage(given, range(len(stages)))
    for key in by_stage:
        if key not in range(len(stages)):
            raise ValueError(f"optimizer has a factory for stage {key!r}, but the stages are 0 to {len(stages) - 1}")
    out: list[Any] = []
    for k, stage in enumerate(stages):
        parameters = [p for p in stage.parameters() if p.requires_grad]
        if parameters and k not in by_stage:
            raise ValueError(f"optimizer has no factory for stage {k}, which has {len(parameters)} parameters to train")
        if parameters:
            hint = "give a factory, called for each stage, such as functools.partial(torch.optim.SGD, lr=0.1)"
            check_callable("optimizer", by_stage[k], hint)
        out.append(by_stage[k] if parameters else None)
    if not any(out):
        raise ValueError("no stage has a parameter that requires a gradient: there is nothing to train")
    return out
