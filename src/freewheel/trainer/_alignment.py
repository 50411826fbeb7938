"""How far a method's gradient points away from the true one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.methods import BP, Method
from freewheel.stage import copied, loss_of, without_loss
from freewheel.trainer._trainer import Trainer


def alignment(trainer: Trainer, batch: tuple[Any, Any], stages: Sequence[nn.Module] | None = None) -> dict[str, float]:
    """The angle between the gradient that the method finds and the true one, in degrees, for each layer.

    0 is the true direction, at 90 a step has no effect to first order, and beyond that it makes the loss larger. Weight
    and bias of a layer count together. Both gradients are taken in training mode, with the same random numbers, of a
    copy of the network: nothing is changed. Delays and optimizers do not count.

    Args:
        trainer: The trainer.
        batch: An (input, target) pair.
        stages: The stages to look at; those of the trainer by default. A callback gives those of its cut, `end.stages`.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> _ = torch.manual_seed(0)
        >>> stages = [nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2)]
        >>> trainer = fw.Trainer(stages, method="dfa", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1), runtime="simulate")
        >>> angles = fw.alignment(trainer, (torch.randn(16, 4), torch.randint(2, (16,))))
        >>> list(angles), angles["stages.1"]
        (['stages.0.0', 'stages.1'], 0.0)
    """
    if stages is None:
        trainer._at_rest("alignment", "give it end.stages, the stages of the cut")
    modules = [stage.module for stage in trainer._stages] if stages is None else list(stages)
    found, true = (_gradients(trainer, modules, method, batch) for method in (trainer.method, BP()))
    out: dict[str, float] = {}
    for name in true:
        ours, theirs = found.get(name, []), true[name]
        if ours and len(ours) == len(theirs):
            out[name] = _angle(*(torch.cat([g.double().flatten().cpu() for g in each]) for each in (ours, theirs)))
    return out


def _gradients(
    trainer: Trainer, modules: Sequence[nn.Module], method: Method, batch: tuple[Any, Any]
) -> dict[str, list[Tensor]]:
    """The gradients of one batch by the layer's name in the whole network."""
    copies, loss = copied(([without_loss(module) for module in modules], loss_of(modules[-1], trainer.config.loss)))
    noted: dict[int, Tensor] = {}
    config = trainer.config
    one = Trainer(
        copies,
        method=method,
        loss=loss,
        optimizer=lambda parameters: _Notes(parameters, noted),
        runtime="simulate",
        seed=config.seed,
        autocast=config.autocast,
        threads=config.threads,
    )
    one.fit([batch], progress=False)
    out: dict[str, list[Tensor]] = {}
    for names, copy in zip(trainer._names, copies, strict=True):
        for own, p in copy.named_parameters():
            gradient = noted.get(id(p), p.grad)  # it stays there where a correction collects several
            if gradient is not None:
                out.setdefault(names[own].rpartition(".")[0], []).append(gradient)
    return out


class _Notes(torch.optim.Optimizer):
    """Writes gradients down and changes nothing."""

    def __init__(self, parameters: Any, noted: dict[int, Tensor]) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self._noted = noted

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Record what would be used."""
        for group in self.param_groups:
            self._noted.update({id(p): p.grad.clone() for p in group["params"] if p.grad is not None})


def _angle(a: Tensor, b: Tensor) -> float:
    """Between two vectors, in degrees; not a number where one of them is zero.

    Example:
        >>> round(_angle(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])), 4)
        45.0
    """
    a, b = a / a.norm(), b / b.norm()
    return math.degrees(2 * math.atan2((a - b).norm().item(), (a + b).norm().item()))
