"""What autograd saves of a forward under `weights="current"`: a tensor, or a view of a weight."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

OTHER_GRAPH = (
    "a replayed forward saves other tensors than the first time: under weights='current', a module whose graph depends "
    "on its values cannot resume from a checkpoint with batches in flight"
)
RUNS_AGAIN = (
    "torch.utils.checkpoint runs a module again in the backward, but under weights='current' the weights of its "
    "forward are gone: use a method that keeps them, such as 'pipedream', or leave checkpointing out"
)


class Gone:
    """Stands for a weight whose value at the forward is gone, and refuses every use."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(RUNS_AGAIN)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError(RUNS_AGAIN)


class Packed(NamedTuple):
    """A saved tensor; or a view of a weight, by the weight's index and the view's size, stride and offset."""

    tensor: Tensor | None
    view: tuple[int, torch.Size, tuple[int, ...], int] | None = None

    def replayed(self, saved: Any) -> Packed:
        """Return what was saved the first time, if it has the same form."""
        if self.view is not None:
            same = saved == self.view
        else:
            assert self.tensor is not None
            same = isinstance(saved, Tensor) and (saved.shape, saved.dtype) == (self.tensor.shape, self.tensor.dtype)
        if not same:
            raise ValueError(OTHER_GRAPH)
        return Packed(saved) if self.view is None else self
