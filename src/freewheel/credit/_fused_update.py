"""An update by d·u in one compiled function: tangents are drawn again, scaled and applied, and never stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel.tangents import CountedTangents, compiled_function

Group = dict[str, Any]  # the settings of a parameter group
State = dict[str, Tensor]  # of the optimizer, for one parameter


def sgd(weight: Tensor, g: Tensor, state: State, lr: Tensor, group: Group) -> None:
    """Step as `torch.optim.SGD`."""
    momentum = group["momentum"]
    g = _decayed(weight, g, group)
    if momentum:
        buffer = state["momentum_buffer"].mul_(momentum).add_(g, alpha=1 - group["dampening"])
        g = g.add(buffer, alpha=momentum) if group["nesterov"] else buffer
    weight.sub_(lr * g)


def adam(weight: Tensor, g: Tensor, state: State, lr: Tensor, group: Group) -> None:
    """Step as `torch.optim.Adam`, and `torch.optim.AdamW` with its `decoupled_weight_decay`."""
    beta1, beta2 = group["betas"]
    if group["decoupled_weight_decay"]:
        weight.mul_(1 - lr * group["weight_decay"])
        g = -g if group["maximize"] else g
    else:
        g = _decayed(weight, g, group)
    step = state["step"].add_(1)
    mean = state["exp_avg"].lerp_(g, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    size, root = lr / (1 - beta1**step), (1 - beta2**step).sqrt()
    weight.sub_(size * (mean / (square.sqrt() / root + group["eps"])))


def _decayed(weight: Tensor, g: Tensor, group: Group) -> Tensor:
    g = -g if group["maximize"] else g
    return g.add(weight, alpha=group["weight_decay"]) if group["weight_decay"] else g


STEPS: dict[type[torch.optim.Optimizer], Callable[[Tensor, Tensor, State, Tensor, Group], None]] = {
    torch.optim.SGD: sgd,
    torch.optim.Adam: adam,
    torch.optim.AdamW: adam,
}


class FusedUpdate:
    """The update of a stage's parameters.

    Args:
        optimizer: The optimizer, with its states.
        counted: The tangents.
        used: The used parameters, by index.
        weights: All parameters of the stage.
        tangents: The number of tangents.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        counted: CountedTangents,
        used: Sequence[int],
        weights: Sequence[Tensor],
        tangents: int,
    ) -> None:
        self._optimizer, self._tangents = optimizer, tangents
        self._used, self._weights = list(used), [weights[i] for i in used]
        groups = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
        numbers = {id(p): n for n, p in groups}
        self._groups = [numbers[id(weight)] for weight in self._weights]  # of each parameter
        self._counted = counted
        self._run: Callable[..., Any] | None = None

    @torch.no_grad()
    def __call__(self, given: Sequence[Tensor], derivatives: Sequence[Tensor], sizes: Sequence[Tensor]) -> None:
        """Update with what the tangents are drawn from and the derivatives of each, and the step size of each group."""
        weights = [weight.detach() for weight in self._weights]
        states = [self._optimizer.state[weight] for weight in self._weights]
        names = [sorted(name for name, value in state.items() if isinstance(value, Tensor)) for state in states]
        flat = [state[name] for state, each in zip(states, names) for name in each]
        inputs = weights, flat, list(given), list(derivatives), list(sizes)
        if self._run is None:
            self._run = compiled_function(self._traced(names, len(given) // len(derivatives)), *inputs, fake=True)
        self._run(*inputs)
        torch.autograd.graph.increment_version(self._weights)

    def _traced(self, names: list[list[str]], width: int) -> Callable[..., list[Tensor]]:
        """Return the function to trace, of lists of tensors."""
        settings = [dict(group) for group in self._optimizer.param_groups]
        step, drawers = STEPS[type(self._optimizer)], [self._counted.drawer([i]) for i in self._used]

        def run(
            weights: list[Tensor], flat: list[Tensor], given: list[Tensor], derivatives: list[Tensor], lr: list[Tensor]
        ) -> list[Tensor]:
            left = iter(flat)
            for weight, drawer, each, n in zip(weights, drawers, names, self._groups):
                g: Any = 0
                for at, d in enumerate(derivatives):
                    (us,) = drawer(given[at * width : (at + 1) * width])
                    for u, factor in zip(us, d):
                        g = g + u * (factor / self._tangents).to(u.dtype)
                step(weight, g, {name: next(left) for name in each}, lr[n], settings[n])
            return []

        return run
