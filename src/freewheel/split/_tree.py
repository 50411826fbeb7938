"""Nested tuples, lists and dicts of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def container(value: Any) -> type | None:
    """``tuple``, ``list`` or ``dict`` if the value is one, None otherwise."""
    return next((kind for kind in (tuple, list, dict) if isinstance(value, kind)), None)


def entries(value: Any) -> list[tuple[Any, Any]]:
    """The (key, entry) pairs of a container, none for any other value.

    Example:
        >>> entries(["a", "b"]), entries({"x": 1}), entries(3)
        ([(0, 'a'), (1, 'b')], [('x', 1)], [])
    """
    kind = container(value)
    return list(value.items() if kind is dict else enumerate(value)) if kind else []


def rebuild(like: Any, values: list[Any]) -> Any:
    """A container of the same kind and keys with other entries."""
    kind = container(like)
    if kind is tuple:
        return getattr(type(like), "_make", type(like))(values)  # named tuples are constructed by _make
    return dict(zip(like, values)) if kind is dict else values


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nested value, in order.

    Example:
        >>> import torch
        >>> [t.item() for t in tensors({"a": torch.tensor(1), "b": [torch.tensor(2), None]})]
        [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    for _, entry in entries(value):
        yield from tensors(entry)


def holds_tensor(value: Any) -> bool:
    """Whether a nested value contains any tensor."""
    return next(tensors(value), None) is not None


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to every tensor of a nested value.

    Example:
        >>> import torch
        >>> map_tensors(lambda t: t + 1, (torch.tensor(1), None))
        (tensor(2), None)
    """
    if isinstance(value, Tensor):
        return change(value)
    found = entries(value)
    return rebuild(value, [map_tensors(change, entry) for _, entry in found]) if found else value
