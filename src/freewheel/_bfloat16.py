"""Whether this CPU computes in bfloat16: on some, PyTorch's kernels die of an illegal instruction."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

UNSUPPORTED = (
    "this CPU cannot compute in bfloat16, PyTorch dies of an illegal instruction there; "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment helps"
)
PROBE = """
import torch
linear, conv = torch.nn.Linear(64, 64), torch.nn.Conv2d(8, 16, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = linear(torch.randn(32, 64)).sum() + conv(torch.randn(4, 8, 16, 16)).sum()
loss.backward()
"""


@cache
def probe() -> int:
    """The exit code of a process that runs layers under bfloat16 autocast; negative if a signal has ended it."""
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True).returncode


def cpu_bfloat16_works() -> bool:
    """Whether layers run under bfloat16 autocast on this CPU."""
    return probe() >= 0


def check_cpu_bfloat16(flag: str) -> None:
    """Refuse a flag that asks for bfloat16 on a CPU that cannot compute in it."""
    if not cpu_bfloat16_works():
        raise ValueError(f"{flag}: {UNSUPPORTED}")
