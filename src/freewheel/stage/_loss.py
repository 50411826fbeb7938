"""Losses: their value, and those with weights of their own, which are trained and saved with the last stage's."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from freewheel.stage._gradients import NO_GRAPH, require_grad
from freewheel.stage._trees import described, versions


class WithLoss(nn.Module):
    """The last stage together with a loss that has parameters or buffers.

    Names in the stage are unchanged; those in the loss begin with `loss`.

    Example:
        >>> [name for name, _ in WithLoss(nn.Linear(2, 1), nn.BatchNorm1d(1)).named_parameters()]
        ['weight', 'bias', 'loss.weight', 'loss.bias']
    """

    def __init__(self, stage: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.stage, self.loss = stage, loss

    def forward(self, x: Any) -> Any:
        """Run the stage."""
        return self.stage(x)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[tuple[str, nn.Module], None, None]:
        """The modules of the stage, and those of the loss."""
        memo = set() if memo is None else memo
        yield from self.stage.named_modules(memo, prefix, remove_duplicate)
        yield from self.loss.named_modules(memo, f"{prefix}.loss" if prefix else "loss", remove_duplicate)

    def get_submodule(self, target: str) -> nn.Module:
        """A module of the stage or of the loss."""
        first, _, rest = target.partition(".")
        return self.loss.get_submodule(rest) if first == "loss" else self.stage.get_submodule(target)


class _Holding(nn.Module):
    """A module that holds a loss which is none."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function


def as_module(loss: Any) -> nn.Module:
    """Return a module that holds what a loss holds: itself, if it is one."""
    return loss if isinstance(loss, nn.Module) else _Holding(loss)


def with_loss(modules: Sequence[nn.Module], loss: Any) -> list[nn.Module]:
    """Put a loss that has parameters or buffers into the last of these stages."""
    if not isinstance(loss, nn.Module) or not [*loss.parameters(), *loss.buffers()]:
        return list(modules)
    if any(name.partition(".")[0] == "loss" for name, _ in modules[-1].named_modules()):
        raise ValueError("loss has weights, and the last stage a module called 'loss': give that one another name")
    return [*modules[:-1], WithLoss(modules[-1], loss)]


def has_weights(loss: Any) -> bool:
    """Whether a loss has parameters to train."""
    return isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters())


def loss_of(module: nn.Module, loss: Any) -> Any:
    """Return the loss that belongs to a stage's module, or the given one."""
    return module.loss if isinstance(module, WithLoss) else loss


def without_loss(module: nn.Module) -> nn.Module:
    """Return the user's module."""
    return module.stage if isinstance(module, WithLoss) else module


def checked_loss(function: Any, out: Any, target: Any) -> Tensor:
    """Return the loss of an output, if it is a number that depends on it and the target is unchanged."""
    before = versions(tree_leaves(target))
    loss = function(out, target)
    if versions(tree_leaves(target)) != before:
        raise ValueError("loss changes its target in place, which may belong to the loader: clone it first")
    if not isinstance(loss, Tensor) or loss.dim():
        raise TypeError(f"loss returned {described(loss)}: it must return a tensor without dimensions; take its mean()")
    if torch.is_grad_enabled() and not loss.requires_grad and require_grad(out):
        raise ValueError(NO_GRAPH)
    return loss
