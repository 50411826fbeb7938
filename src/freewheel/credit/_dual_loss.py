"""The loss of dual numbers, and its directional derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from freewheel.stage import NO_GRAPH, flatten, tensors_among, unflatten
from freewheel.tangents import split_duals


def no_loss(out: Any, *, per_sample: bool) -> tuple[Tensor, Tensor]:
    """Return zeros, for a part of a sequence before its end."""
    first = tensors_among(flatten(split_duals(out)[0])[0])[0]
    return first.new_zeros(()), first.new_zeros(first.shape[0] if per_sample else ())


def loss_and_derivative(loss_of: Callable[[Any], Tensor], out: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of a dual output and its derivative."""
    loss, d = unpack_dual(loss_of(out))
    if d is None and any(o is not None for o in split_duals(out)[1]):
        raise ValueError(NO_GRAPH)
    return loss, torch.zeros_like(loss) if d is None else d


def loss_and_derivatives(loss_of: Callable[[Any], Tensor], out: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of a dual output and its derivative per sample, by a backward through the loss alone."""
    values, tangents = split_duals(out)
    leaves, shape = flatten(values)
    leaves = [v if o is None else v.detach().requires_grad_() for v, o in zip(leaves, tangents)]
    loss = loss_of(unflatten(leaves, shape))
    pairs = [(v, o) for v, o in zip(leaves, tangents) if o is not None]
    found = torch.autograd.grad(loss, [v for v, _ in pairs], allow_unused=True) if pairs else ()
    samples = no_loss(out, per_sample=True)[1]
    for g, (_, o) in zip(found, pairs):
        samples = samples if g is None else samples + (g * o).flatten(1).sum(1)
    return loss.detach(), samples
