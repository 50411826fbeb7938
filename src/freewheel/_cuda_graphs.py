"""Capturing a CUDA graph, and leaving the capture if it fails."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture what is called inside the context, on the current stream."""
    collects = gc.isenabled()
    gc.disable()  # a graph that is collected in a capture would break it
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
                graph.capture_end()
            except BaseException:
                _give_up(graph, pool)
                raise
    finally:
        if collects:
            gc.enable()


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that has failed.

    torch 2.11 keeps the allocator in it (pytorch#180395): nothing that two streams have used would be freed any more.
    So it keeps the default generator, which would refuse to draw until another capture ends well.
    """
    with suppress(RuntimeError):
        graph.capture_end()
    with suppress(RuntimeError):  # it has left it
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with suppress(RuntimeError):
        other = torch.cuda.CUDAGraph()
        other.capture_begin(capture_error_mode="thread_local")
        try:
            torch.zeros((), device="cuda")
        finally:  # there may be no memory left for it
            other.capture_end()
