"""Compiling a dual pass into one function.

The pass is traced once with real tensors into a graph of plain operations on values and tangents, without dual numbers,
that references parameters and buffers. Several tangents are batched with `vmap`, so values are computed once. The graph
goes directly to Inductor, so a call has no guards and does not affect stages in other threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

DualFunction = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]

_one_at_a_time = threading.Lock()  # tracing and compiling change global state of torch


class FixedTangents:
    """Given tangents, by the index of the parameter."""

    def __init__(self, index_of: Callable[[Tensor], int | None], tangents: dict[int, Tensor]) -> None:
        self.index_of, self._tangents = index_of, tangents

    def tangent(self, index: int) -> Tensor | None:
        """Return the tangent of a parameter, None if it has none."""
        return self._tangents.get(index)


def compiled(run: DualFunction, values: list[Tensor], tangents: list[Tensor]) -> DualFunction:
    """Compile a function of values and tangents for tensors like these.

    Args:
        run: The function for one tangent. Its in-place changes of buffers are compiled, too.
        values: Example values.
        tangents: Example tangents, stacked in the first dimension.
    """
    single = [t[0] for t in tangents]
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the compiler's own
        try:
            graph = _traced(run, values, single)
            if tangents and tangents[0].shape[0] == 1:
                function = _inductor(graph, values, single)
                return lambda v, t: _stacked(function(v, [each[0] for each in t]))
            batched = torch.func.vmap(graph, in_dims=(None, 0), out_dims=(None, 0))  # pyright: ignore
            graph = _traced(batched, values, tangents)
            return _inductor(graph, values, tangents)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise RuntimeError(f"compile=True: the pass cannot be compiled ({reason}); leave compile out") from error


def _traced(run: DualFunction, *inputs: list[Tensor]) -> GraphModule:
    graph = make_fx(run)(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _inductor(graph: GraphModule, *inputs: list[Tensor]) -> DualFunction:
    with torch.no_grad():
        return torch._inductor.compile(graph, list(inputs))  # pyright: ignore


def _stacked(out: tuple[Sequence[Tensor], Sequence[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    values, tangents = out
    return list(values), [t.unsqueeze(0) for t in tangents]
