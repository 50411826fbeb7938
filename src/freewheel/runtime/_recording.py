"""Recording of a CUDA graph."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from freewheel.runtime._fixed import NotCapturedError


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any, what: str) -> Iterator[None]:
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
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise NotCapturedError(
            f"{what} cannot be captured as a CUDA graph ({reason}): use runtime='threads', or leave out what makes the "
            "CPU wait for the GPU or depends on values, such as item(), nonzero() or a mask as an index"
        ) from error
    finally:
        if collects:
            gc.enable()


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that has failed.

    torch 2.11 keeps the allocator in it (pytorch#180395): nothing that two streams have used would be freed any more.
    """
    with suppress(RuntimeError):
        graph.capture_end()
    with suppress(RuntimeError):  # it has left it
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
