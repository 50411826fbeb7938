"""Torch's global settings: those that workers take over from the caller, and those that every fit needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

# How each setting is read, and set.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
}


@dataclass(frozen=True)
class TorchSettings:
    """The global settings that change results.

    Example:
        >>> settings = TorchSettings.current()
        >>> torch.set_default_dtype(torch.float64)
        >>> settings.apply()
        >>> torch.get_default_dtype()
        torch.float32
    """

    values: dict[str, Any]

    @classmethod
    def current(cls) -> TorchSettings:
        """Return those of this process."""
        return cls({name: read() for name, (read, _) in SETTINGS.items()})

    def apply(self) -> None:
        """Make them those of this process."""
        for name, (read, write) in SETTINGS.items():
            if read() != self.values[name]:
                write(self.values[name])


@contextmanager
def deterministic_convolutions() -> Iterator[None]:
    """Let cuDNN take algorithms inside the context that give the same bits every time.

    By default it takes some for gradients of convolutions that add in any order, so that no two trainings on a GPU are
    the same.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
