"""Weights in memory that several processes share: one flat tensor a type, of which weights and buffers are views."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, MutableSequence, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.racing._layers import on_tensors

Memory = dict[torch.dtype, Tensor]


def shared_copy(stages: Sequence[nn.Module]) -> Memory:
    """A copy of all weights and buffers in shared memory."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in _all(stages):
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    memory = {dtype: torch.empty(size, dtype=dtype).share_memory_() for dtype, size in sizes.items()}
    copy_in(memory, stages)
    return memory


def copy_in(memory: Memory, stages: Sequence[nn.Module]) -> None:
    """Puts the values of modules there."""
    with torch.no_grad():
        for tensor, view in _views(memory, stages):
            view.copy_(tensor)


def copy_out(memory: Memory, stages: Sequence[nn.Module]) -> None:
    """Gives modules the values that are there."""
    with torch.no_grad():
        for tensor, view in _views(memory, stages):
            tensor.copy_(view)


def in_memory(memory: Memory, stages: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of the modules whose weights and buffers lie there.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> memory = shared_copy([net])
        >>> (there,) = in_memory(memory, [net])
        >>> _ = memory[torch.float32].fill_(5.0)
        >>> there.bias.item()
        5.0
    """
    views = {id(tensor): view for tensor, view in _views(memory, stages)}
    return on_tensors(stages, lambda tensor: views[id(tensor)])


def average(memories: Sequence[Memory]) -> None:
    """Gives all of them the mean of those numbers that are fractions."""
    for dtype in memories[0]:
        if dtype.is_floating_point and len(memories) > 1:
            mean = torch.stack([memory[dtype] for memory in memories]).mean(0)
            for memory in memories:
                memory[dtype].copy_(mean)


def numbers(tensor: Tensor) -> MutableSequence[int]:
    """The whole numbers of a tensor as a sequence that is quick to read and write; the tensor must outlive it."""
    assert tensor.dtype is torch.int64
    assert tensor.is_contiguous()
    array: Any = (ctypes.c_int64 * tensor.numel()).from_address(tensor.data_ptr())
    return array


def _all(stages: Sequence[nn.Module]) -> list[Tensor]:
    found = [t for stage in stages for t in (*stage.parameters(), *stage.buffers())]
    return list({id(t): t for t in found}.values())


def _views(memory: Memory, stages: Sequence[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    places = dict.fromkeys(memory, 0)
    for tensor in _all(stages):
        start = places[tensor.dtype]
        places[tensor.dtype] = end = start + tensor.numel()
        yield tensor, memory[tensor.dtype][start:end].view(tensor.shape)
