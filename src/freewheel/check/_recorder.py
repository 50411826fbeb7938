"""An optimizer that records gradients and makes steps that do not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

NUDGE = 0.05  # of a weight's root mean square


class Recorder(torch.optim.Optimizer):
    """Records the gradients of each step; with `moves`, the weights then move by `nudge`.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> recorder = Recorder([weight], moves=False)
        >>> weight.grad = torch.tensor([1.0, 2.0])
        >>> recorder.step()
        >>> recorder.steps[0][id(weight)], weight.tolist()
        (tensor([1., 2.]), [1.0, 1.0])
    """

    def __init__(self, parameters: Iterable[Any], *, moves: bool) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.steps: list[dict[int, Tensor | None]] = []  # by the id of the parameter
        found = [p for group in self.param_groups for p in group["params"]]
        self._nudges = [(p, nudge(p)) for p in found if p.requires_grad] if moves else []

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore
        """Record the gradients."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.steps.append({id(p): None if p.grad is None else p.grad.detach().clone() for p in parameters})
        with torch.no_grad():
            for parameter, change in self._nudges:
                parameter.add_(change)


def nudge(weight: Tensor) -> Tensor:
    """Return a small change of a weight, the same for equal weights."""
    with torch.no_grad():
        size = NUDGE * torch.linalg.vector_norm(weight) / max(1, weight.numel()) ** 0.5 + NUDGE**2
        waves = torch.arange(weight.numel(), device=weight.device, dtype=torch.float32).cos()
        return (size * waves.view(weight.shape)).to(weight.dtype)
