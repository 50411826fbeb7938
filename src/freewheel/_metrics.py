"""What a network's output is scored by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> float | None:
    """Returns the share of right classes, or None where output and target are not class scores and class numbers.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if target.is_floating_point() or target.dtype == torch.bool or output.dim() != target.dim() + 1:
        return None
    if (output.shape[0], *output.shape[2:]) != target.shape:  # the classes are not where cross_entropy has them
        return None
    return (output.argmax(1) == target).float().mean().item()
