"""What the benchmarks ask about the machine."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

import torch

from freewheel._cores import cores


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine() -> dict[str, Any]:
    """Cores, load and versions, to be stored with a measurement."""
    return {
        "cores": cores(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
