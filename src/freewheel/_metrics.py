"""Metrics of a network's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> float | None:
    """Return the share of correct classes, or None if output and target are not class scores and class indices.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if target.is_floating_point() or target.dtype == torch.bool or output.dim() != target.dim() + 1:
        return None
    if (output.shape[0], *output.shape[2:]) != target.shape:  # classes are not in dimension 1, as in cross_entropy
        return None
    return (output.argmax(1) == target).float().mean().item()
