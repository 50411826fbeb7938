"""Gradients: their sum, their layout, and whether there will be any."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from freewheel.stage._trees import flatten, tensors_among

NO_GRAPH = (
    "loss returned a tensor without a graph, so that nothing could be learned from it: compute it from the output with "
    "differentiable functions, without detach() or torch.no_grad()"
)


def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, either of which may be None."""
    return b if a is None else a if b is None else a + b


def align_gradient(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    """Return a gradient as `backward()` would store it, with the strides of its weight: fused optimizers rely on that.

    Example:
        >>> align_gradient(torch.ones(3, 2).t(), torch.zeros(2, 3)).stride()
        (3, 1)
    """
    if gradient is None or gradient.layout is not torch.strided:
        return gradient
    return with_strides(gradient, weight)


def with_strides(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor with the strides of a weight of its shape."""
    if tensor.stride() == weight.stride():
        return tensor
    return torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)


def require_grad(tree: Any) -> bool:
    """Return whether a tensor of a tree requires a gradient."""
    return any(t.requires_grad for t in tensors_among(flatten(tree)[0]))
