"""What the benchmarks ask about the machine."""

from __future__ import annotations

import os
import platform
import socket
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from freewheel._cores import cores
from freewheel.doctor import processor


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine() -> dict[str, Any]:
    """The CPU, its load and versions, to be stored with a measurement."""
    return {
        "processor": processor(),
        "cores": cores(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def gpu_machine(device: str) -> dict[str, Any]:
    """The same, with the GPU and the versions of what runs on it, and the date."""
    found = {"device": device if device == "cpu" else torch.cuda.get_device_name(device)}
    for name in ("jax", "triton", "torchvision"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return {**machine(), "date": today, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), **found}
