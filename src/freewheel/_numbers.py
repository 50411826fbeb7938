"""Numbers that a GPU has still to compute: kept as they are, and read together at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def kept(value: Any) -> Tensor | float:
    """Return a number for `read`: a copy of one on a GPU, which nothing waits for, and the value of any other.

    Example:
        >>> kept(torch.tensor(2.0)), kept(3)
        (2.0, 3.0)
    """
    return value.detach().clone() if isinstance(value, Tensor) and value.is_cuda else float(value)


def read(values: Sequence[Any]) -> list[float]:
    """Return the values of numbers; those on one GPU are read in one go.

    Example:
        >>> read([torch.tensor(0.5), 2])
        [0.5, 2.0]
    """
    kinds = {(value.device, value.dtype) if isinstance(value, Tensor) else None for value in values}
    if len(kinds) == 1 and all(kind is not None and kind[0].type == "cuda" for kind in kinds):
        return [float(value) for value in torch.stack([value.detach().reshape(()) for value in values]).tolist()]
    return [float(value) for value in values]
