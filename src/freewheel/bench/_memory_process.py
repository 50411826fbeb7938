"""Measuring each contender in a fresh process.

A template process imports everything once and is forked for each measurement, so that all of them start alike. On a
GPU, where the allocator's peak can be reset, it measures by itself.
Requests and replies are lines of JSON on its standard input and output.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from freewheel._malloc import LARGEST_BLOCK
from freewheel.bench._memory_accountant import give_back, peak_extra, peak_resident
from freewheel.bench._memory_contenders import make_contender
from freewheel.bench._memory_nets import Net

# One thread everywhere, freed memory returned to the system, and a silent profiler.
SETTINGS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "FREEWHEEL_KEEP_MEMORY": "0",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

SMALL = 16 << 10  # nearly all of what is measured is in larger blocks


class Template:
    """The template process. Ctrl-C does not reach it; `stop` ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | SETTINGS,
            start_new_session=True,
        )

    def measure(self, name: str, net: Net, device: str) -> dict[str, int | None]:
        """The peak of a contender: `extra`, bytes of tensors; `resident`, bytes of the process, or None on a GPU."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, asdict(net), device]) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        if "error" in reply:
            raise RuntimeError(f"{name!r} on {net} failed: {reply['error']}")
        return reply

    def stop(self) -> None:
        """End the process, and a measurement in progress."""
        os.killpg(self._process.pid, 9)
        self._process.communicate()


def measure(name: str, net: Net, device: str) -> dict[str, int | None]:
    """Measure a contender in this process; the resident set first, since counting tensors adds to it."""
    torch.set_num_threads(1)
    give_back(SMALL)
    train, steps = make_contender(name, net, device)
    train([net.data(2, device)] * 2)  # loads libraries
    run = partial(train, [net.data(net.batch, device)] * steps)
    resident = peak_resident(run) if device == "cpu" else None
    give_back(LARGEST_BLOCK)  # faster, and the count is the same
    return {"extra": peak_extra(run, device), "resident": resident}


def serve() -> None:
    """Answer requests until standard input ends."""
    net = Net(kind="conv", depth=2, width=2)
    make_contender("AsyncFGD", net, "cpu")[0]([net.data(2)])  # loads what torch loads late; a backward prevents forking
    gc.collect()
    gc.freeze()  # no child process needs to scan what exists now
    for line in sys.stdin:
        if json.loads(line)[-1] != "cpu":  # CUDA cannot be used in a process that was forked
            _send(_answer(line))
            continue
        child = os.fork()
        if not child:
            _send(_answer(line))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            _send({"error": f"its process ended with {code}"})


def _answer(line: str) -> dict[str, Any]:
    """The reply to one request, or an error."""
    try:
        name, net, device = json.loads(line)
        return measure(name, Net(**net), device)
    except Exception:
        return {"error": traceback.format_exc()}


def _send(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
