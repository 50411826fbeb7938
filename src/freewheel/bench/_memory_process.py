"""Measuring each contender in a process of its own.

A template process imports everything once and is forked for each measurement, so that every one of them finds the same
fresh process. Questions and answers are lines of JSON on its standard input and output.
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
from freewheel.bench._memory_contenders import contender
from freewheel.bench._memory_nets import Net

# One thread everywhere, freed memory given back, and no word from the profiler about itself.
SETTINGS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "FREEWHEEL_KEEP_MEMORY": "0",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

SMALL = 16 << 10  # nearly all that is measured lies in larger blocks


class Template:
    """The template process. Ctrl-C does not reach it: whoever asks decides what becomes of it."""

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
        """The peak of a contender: `extra`, bytes of tensors; `resident`, bytes of the process, where that is it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, asdict(net), device]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        if "error" in answer:
            raise RuntimeError(f"{name!r} on {net} failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Ends it, and the measurement that may be under way."""
        os.killpg(self._process.pid, 9)
        self._process.communicate()


def measure(name: str, net: Net, device: str) -> dict[str, int | None]:
    """Measures a contender in this process: its resident set first, which the counting itself adds to."""
    torch.set_num_threads(1)
    give_back(SMALL)
    train, steps = contender(name, net, device)
    train([net.data(2, device)] * 2)  # loads what it needs
    run = partial(train, [net.data(net.batch, device)] * steps)
    resident = peak_resident(run) if device == "cpu" else None
    give_back(LARGEST_BLOCK)  # counting does not mind, and is faster
    return {"extra": peak_extra(run, device), "resident": resident}


def serve() -> None:
    """Answers questions until there are no more."""
    net = Net(kind="conv", depth=2, width=2)
    contender("AsyncFGD", net, "cpu")[0]([net.data(2)])  # imports what torch leaves for later; a backward bars forking
    gc.collect()
    gc.freeze()  # what there is now is no garbage, and need not be looked at in every process
    for line in sys.stdin:
        child = os.fork()
        if not child:
            say(answer(line))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            say({"error": f"its process ended with {code}"})


def answer(line: str) -> dict[str, Any]:
    """The answer to one question, which may be what went wrong."""
    try:
        name, net, device = json.loads(line)
        return measure(name, Net(**net), device)
    except Exception:
        return {"error": traceback.format_exc()}


def say(answer: dict[str, Any]) -> None:
    """Writes a line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
