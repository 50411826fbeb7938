"""Plain data: what can be written, and read again without running anybody's code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor

SIMPLE = (type(None), bool, int, float, complex, str, bytes)


def plain(value: Any, what: str = "it") -> Any:
    """The same tree in tuples, lists, dicts, tensors, numbers and text; refuses anything else.

    Tensors are not copied, unless they are a view of something larger, which would be written as a whole.

    Example:
        >>> plain({"size": torch.Size([2, 3]), "x": torch.zeros(9)[:1]})
        {'size': (2, 3), 'x': tensor([0.])}
    """
    if isinstance(value, Tensor):
        return _compact(value)
    if type(value) in SIMPLE:
        return value
    if type(value) in (tuple, torch.Size):
        return tuple([plain(part, what) for part in value])
    if type(value) is list:
        return [plain(part, what) for part in value]
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({plain(key, what): plain(part, what) for key, part in value.items()})
    raise TypeError(
        f"{what} has a {type(value).__name__} in it: a checkpoint holds tensors, numbers, text, and tuples, lists and "
        "dicts of these; use them instead, or train without save_to"
    )


def _compact(tensor: Tensor) -> Tensor:
    """The tensor without its graph, in memory of its own size, with the same strides."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return tensor
    if tensor._is_zerotensor() or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    if tensor.untyped_storage().nbytes() == span * tensor.element_size():
        return tensor
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.size(), tensor.stride(), 0)
