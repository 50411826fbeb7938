"""Tensors inside tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nested value, in order.

    Example:
        >>> import torch
        >>> [t.item() for t in tensors({"a": torch.tensor(1), "b": [torch.tensor(2), None]})]
        [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nested value with every tensor changed.

    Example:
        >>> import torch
        >>> map_tensors(lambda t: t + 1, (torch.tensor(1), None))
        (tensor(2), None)
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        make = getattr(type(value), "_make", type(value))  # named tuples are made from a list otherwise
        return make([map_tensors(change, part) for part in value])
    if isinstance(value, list):
        return [map_tensors(change, part) for part in value]
    if isinstance(value, dict):
        return {key: map_tensors(change, part) for key, part in value.items()}
    return value
