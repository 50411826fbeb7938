"""Splitting a batch into micro-batches: along its samples, or along time."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from freewheel._trees import map_tensors, tensors_of
from freewheel.plan import OverTime

MicroBatch = tuple[Any, int, float]  # its input or target, its number of samples, its weight in the loss


def split_samples(tree: Any, size: int, micro: int, what: str, by: str = "micro") -> list[MicroBatch]:
    """Micro-batches along the first dimension; None for those that a small batch has no samples for."""
    if micro == 1:
        return [(tree, size, 1.0)]
    tensors = tensors_of(tree)
    leaves = [leaf for leaf in tree_leaves(tree) if leaf is not None] or [tree]
    if len(tensors) < len(leaves) or any(not t.dim() or t.shape[0] != size for t in tensors):
        raise ValueError(
            f"{by}={micro} cuts a batch along its first dimension, but this {what} is not a tensor of {size} rows"
        )
    lengths = _lengths(size, micro)
    return [(each, n, n / size) for each, n in zip(_slices(tree, lengths, 0), lengths)]


def split_time(
    tree: Any, size: int, micro: int, what: str, length: int | None = None, over: OverTime = "mean"
) -> list[MicroBatch]:
    """Micro-batches along the second dimension; the loss is the mean or the sum `over` time.

    A target without one, or with another `length` than the input's, belongs to the end of the sequence alone.
    """
    tensors = tensors_of(tree)
    whole = what == "target" and all(t.dim() < 2 or length not in (None, t.shape[1]) for t in tensors)
    if whole:
        return [*[(None, 0, 0.0)] * (micro - 1), (tree, size, 1.0)]
    if any(tensor.dim() < 2 for tensor in tensors):
        raise ValueError(f"steps={micro} cuts sequences along their second dimension, but this {what} has none")
    steps = tensors[0].shape[1]
    for tensor in tensors:
        if tensor.shape[1] != steps:
            raise ValueError(f"steps={micro}: this {what} has tensors of {steps} and {tensor.shape[1]} time steps")
    if steps < micro:
        raise ValueError(f"steps={micro}: this {what} has only {steps} time steps; give {steps} or less")
    lengths = _lengths(steps, micro)
    ends = [0] * (micro - 1) + [size]  # the samples count once
    total = steps if over == "mean" else 1
    return [(each, n, count / total) for each, n, count in zip(_slices(tree, lengths, 1), ends, lengths)]


def _lengths(total: int, count: int) -> list[int]:
    return [total // count + (j < total % count) for j in range(count)]


def _slices(tree: Any, lengths: list[int], dim: int) -> list[Any]:
    bounds = pairwise(accumulate(lengths, initial=0))
    return [
        map_tensors(partial(torch.narrow, dim=dim, start=a, length=b - a), tree) if b > a else None for a, b in bounds
    ]
