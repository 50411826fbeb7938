"""One level of dual numbers for the whole process.

torch has one level at a time, and leaving it takes the tangents off every tensor in every thread. So the first stage
that starts a run enters it, and the last one that ends leaves it.
"""

from __future__ import annotations

import threading
import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

LEVEL = 0  # there is never a second one

_lock = threading.Lock()
_users = 0


def enter_level() -> None:
    """From here on tensors may carry tangents."""
    global _users
    with _lock:
        if _users == 0:
            with warnings.catch_warnings():  # torch compiles some formulas here, in a way that it itself deprecates
                warnings.simplefilter("ignore", DeprecationWarning)
                import torch._decomp.decompositions_for_jvp  # noqa: F401
            forward_ad.enter_dual_level()
        _users += 1


def leave_level() -> None:
    """This user needs no tangents any more."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            forward_ad.exit_dual_level()


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A value with its tangent: torch's `make_dual`, without checks of its arguments that cost more than the rest."""
    return torch._VF._make_dual(value, tangent, level=LEVEL)
