"""Whether a graph computes what its model computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from freewheel.split._arguments import check_example
from freewheel.split._trace import Traced
from freewheel.split._tracer import MANUAL_SPLIT
from freewheel.split._tree import map_tensors, tensors
from freewheel.split._undisturbed import raised_by_signal
from freewheel.split._values import observe


def agree(one: Any, two: Any) -> bool:
    """Whether two outputs are equal, up to the noise of nondeterministic operations."""
    ones, twos = list(tensors(one)), list(tensors(two))
    return len(ones) == len(twos) and all(map(_close, ones, twos))


def _close(one: Tensor, two: Tensor) -> bool:
    """Equal up to the noise of nondeterministic operations."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one, two, rtol=1e-2, atol=1e-3, equal_nan=True)


def check_other_batch(traced: Traced, example: Any) -> None:
    """Reject a recording that holds for its example only: try one sample more, and shorter sequences.

    A graph that fails on sequences of another length, and does not compute something else, is accepted.
    """
    shape = next((t.shape for t in tensors(example) if t.dim()), torch.Size([0]))

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[-1:], tensor]) if tensor.shape[:1] == shape[:1] else tensor

    def shorter(tensor: Tensor) -> Tensor:
        return tensor[:, 1:] if tensor.dim() > 1 and tensor.shape[1] == shape[1:2].numel() else tensor

    if not (_computes(traced, map_tensors(longer, example), fails=False)
            and _computes(traced, map_tensors(shorter, example), fails=True)):  # fmt: skip
        raise ValueError(
            f"model: {type(traced.model).__name__}.forward computes something from the number, the length or the "
            f"values of the samples that cannot be recorded: move that into a submodule, which is then kept whole, "
            f"{MANUAL_SPLIT}"
        )


def _computes(traced: Traced, example: Any, *, fails: bool) -> bool:
    """Whether the graph computes what the model does, if that takes such a batch; `fails` is returned on an error."""
    try:
        wanted = check_example(traced.model, example)
    except ValueError:
        return True
    try:
        return agree(observe(traced, example).output, wanted)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return fails
