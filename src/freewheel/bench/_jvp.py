"""Forward gradients in plain PyTorch: a step with `torch.func.jvp`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def jvp_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, compiled: bool = False
) -> Callable[[Tensor, Tensor], None]:
    """A training step; `torch.func.jvp` cannot update running statistics, so the network's are removed."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    weights = dict(model.named_parameters())

    def derivative(values: dict[str, Tensor], u: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, values, (x,)), target)

        return torch.func.jvp(loss, (values,), (u,))[1]

    along = torch.compile(derivative) if compiled else derivative

    @torch.no_grad()
    def step(x: Tensor, target: Tensor) -> None:
        u = {name: torch.randn_like(weight) for name, weight in weights.items()}
        d = along({name: weight.detach() for name, weight in weights.items()}, u, x, target)
        for name, weight in weights.items():
            weight.grad = u[name] * d
        optimizer.step()

    return step
