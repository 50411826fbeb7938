"""A dual pass as one compiled function.

The pass is traced once with real tensors: what comes out is a graph of plain operations on values and tangents, with
parameters and buffers in it by reference, and no dual numbers left. It goes to the compiler of `torch.compile` as it
is, so that a call costs no guards, and stages in other threads are not disturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

Flat = Callable[..., Sequence[Tensor]]

_one_at_a_time = threading.Lock()  # tracing and compiling change what is global in torch


class Given:
    """Tangents that are there already, by the number of the parameter."""

    def __init__(self, index_of: Callable[[Tensor], int | None], tangents: dict[int, Tensor]) -> None:
        self.index_of, self._tangents = index_of, tangents

    def tangent(self, index: int) -> Tensor | None:
        """The tangent of a parameter, None for one that is not moved."""
        return self._tangents.get(index)


def compiled(flat: Flat, inputs: list[Tensor]) -> Flat:
    """A function of tensors, compiled for tensors like these; its own effects on buffers are kept."""
    with _one_at_a_time:
        try:
            graph = make_fx(flat)(*inputs)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            with torch.no_grad():
                return torch._inductor.compile(graph, inputs)  # pyright: ignore
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise RuntimeError(
                f"compile=True: the dual pass cannot be compiled ({reason}); leave compile out"
            ) from error
