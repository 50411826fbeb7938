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
    """Reject a recording that holds for its example only: try one sample more, and in another order."""
    size = next((t.shape[0] for t in tensors(example) if t.dim()), 0)

    def longer(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[-1:], tensor]) if tensor.dim() and tensor.shape[0] == size else tensor

    other = map_tensors(longer, example)
    try:
        wanted = check_example(traced.model, other)
    except ValueError:
        return  # the model itself takes no other batches
    try:
        same = agree(observe(traced, other).output, wanted)
    except Exception as error:
        if raised_by_signal(error):
            raise
        same = False
    if not same:
        raise ValueError(
            f"model: {type(traced.model).__name__}.forward computes something from the number or the values of the "
            f"samples that cannot be recorded: move that into a submodule, which is then kept whole, {MANUAL_SPLIT}"
        )
