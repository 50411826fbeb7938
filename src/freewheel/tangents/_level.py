"""The dual level of the process.

torch has one dual level at a time, and leaving it removes the tangents of every tensor in every thread. The first stage
that starts a run enters it, and the last one that ends leaves it.
"""

from __future__ import annotations

import threading
import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

LEVEL = 0  # the only one

_lock = threading.Lock()
_users = 0


def enter_level() -> None:
    """Enter the dual level, or count one more user."""
    global _users
    with _lock:
        if _users == 0:
            with warnings.catch_warnings():  # this import uses a deprecated way of compiling
                warnings.simplefilter("ignore", DeprecationWarning)
                import torch._decomp.decompositions_for_jvp  # noqa: F401
            forward_ad.enter_dual_level()
        _users += 1


def leave_level() -> None:
    """Leave the dual level if this is its last user."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            forward_ad.exit_dual_level()


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """Return a dual number; `make_dual` without its argument checks, which take most of its time."""
    return torch._VF._make_dual(value, tangent, level=LEVEL)
