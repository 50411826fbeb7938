"""The peaks of memory of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from freewheel.runtime import largest_worker

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None

KIB = 1024


def peak_memory(devices: Iterable[torch.device], *, workers: bool) -> dict[str, Any]:
    """The peaks in bytes: of this process, of the largest of its workers, and of each GPU among the devices.

    Those of the host are None on systems that do not know them.
    """
    gpus = {str(device): device for device in devices if device.type == "cuda"}
    return {
        "host": _host(),
        "worker": largest_worker() if workers else None,
        "devices": {
            name: {
                "allocated": torch.cuda.max_memory_allocated(device),
                "reserved": torch.cuda.max_memory_reserved(device),
            }
            for name, device in gpus.items()
        },
    }


def _host() -> int | None:
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
