"""Recording of a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from freewheel._cuda_graphs import capturing
from freewheel.runtime._fixed import NotCapturedError


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any, what: str) -> Iterator[None]:
    """Capture what is called inside the context, on the current stream; say what cannot be captured."""
    try:
        with capturing(graph, pool):
            yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise NotCapturedError(
            f"{what} cannot be captured as a CUDA graph ({reason}): use runtime='threads', or leave out what makes the "
            "CPU wait for the GPU or depends on values, such as item(), nonzero() or a mask as an index"
        ) from error
