"""Cutting a batch into micro-batches: along its samples, or along time."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Piece = tuple[Any, int, float]  # what there is, its number of samples, its share of the loss


def cut_in_samples(tree: Any, size: int, micro: int, what: str, by: str = "micro") -> list[Piece]:
    """Pieces along the first dimension; None for those that a small batch has no samples for."""
    if micro == 1:
        return [(tree, size, 1.0)]
    for tensor in tree_leaves(tree):
        if not isinstance(tensor, Tensor) or not tensor.dim() or tensor.shape[0] != size:
            raise ValueError(
                f"{by}={micro} cuts a batch along its first dimension, but this {what} is not a tensor of {size} rows"
            )
    lengths = _lengths(size, micro)
    return [(piece, n, n / size) for piece, n in zip(_slices(tree, lengths, 0), lengths)]


def cut_in_time(tree: Any, size: int, micro: int, what: str, length: int | None = None) -> list[Piece]:
    """Pieces along the second dimension.

    A target without one, or with one of another `length` than the input's, belongs to the end of the sequence alone.
    """
    tensors = [t for t in tree_leaves(tree) if isinstance(t, Tensor)]
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
        raise ValueError(f"steps={micro} cuts a sequence into so many pieces, but this {what} has {steps} time steps")
    lengths = _lengths(steps, micro)
    ends = [0] * (micro - 1) + [size]  # the samples count once
    return [(piece, n, part / steps) for piece, n, part in zip(_slices(tree, lengths, 1), ends, lengths)]


def _lengths(total: int, count: int) -> list[int]:
    return [total // count + (j < total % count) for j in range(count)]


def _slices(tree: Any, lengths: list[int], dim: int) -> list[Any]:
    bounds = list(pairwise(accumulate(lengths, initial=0)))
    return [
        tree_map(lambda t, a=a, b=b: t.narrow(dim, a, b - a) if isinstance(t, Tensor) else t, tree) if b > a else None
        for a, b in bounds
    ]
