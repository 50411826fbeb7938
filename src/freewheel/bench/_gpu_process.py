"""Processes of the GPU benchmark: one for each case and kind of contender, alive until the end.

They compile at the same time, and take turns afterwards. None is affected by what another does to its process.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch.multiprocessing as mp
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from freewheel.bench._gpu_cases import Case
from freewheel.bench._gpu_contender import Batches, Built, Contender, build, make_batches

Makers = Callable[[Case, Batches, str], dict[str, Callable[[], Contender]]]
KINDS = {  # the function that names the contenders of a case; it is imported where it is called
    "freewheel": ("freewheel.bench._gpu_epoch", "freewheel_makers"),
    "PyTorch": ("freewheel.bench._gpu_torch", "pytorch_makers"),
    "JAX": ("freewheel.bench._gpu_jax", "jax_makers"),
}
FEWEST = 20  # batches of a turn
COMPILE_THREADS = 4  # in each process
RECOMPILE_LIMIT = 64  # beyond the default of 8 it runs eagerly without a word


class Failed(NamedTuple):
    """Why a contender has no result."""

    error: str
    traceback: str = ""


class Worker:
    """A process that builds the contenders of one kind for a case, and lets them take turns.

    Args:
        case: The case.
        kind: A name in `KINDS`.
        device: `cuda`, or `cpu` for tests.
    """

    def __init__(self, case: Case, kind: str, device: str) -> None:
        self.case, self.kind = case, kind
        context = mp.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, case, kind, device))
        self._process.start()
        theirs.close()

    def send(self, *command: Any) -> None:
        """Send a command: `prepare`; `build`, with a deadline; `turns`, with a name, how many, and their seconds."""
        with suppress(BrokenPipeError):  # `receive` will say so
            self.connection.send(command)

    def receive(self, deadline: float) -> Any:
        """The next answer; a `Failed` if the process has ended. Raises TimeoutError at the deadline."""
        if not self.connection.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(5)
            return Failed(f"its process ended with {self._process.exitcode}")

    def stop(self) -> None:
        """End the process and those that it has started."""
        self.connection.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, case: Case, kind: str, device: str) -> None:
    """Answer commands until the connection is closed."""
    os.setsid()  # Ctrl-C is for the caller
    team = Team(case, kind, device)
    with suppress(Exception):  # `prepare` says why; here, all processes do it at once
        importlib.import_module(KINDS[kind][0])
    with suppress(EOFError, ConnectionError):
        while True:
            verb, *arguments = connection.recv()
            for answer in getattr(team, verb)(*arguments):
                connection.send(answer)


class Team:
    """The contenders of one kind for a case; every method yields its answers."""

    def __init__(self, case: Case, kind: str, device: str) -> None:
        self._case, self._kind, self._device = case, kind, device
        self._torch_device = "cpu" if kind == "JAX" else device  # JAX copies batches to the device by itself
        self._makers: dict[str, Callable[[], Contender]] = {}
        self._ready: dict[str, Built] = {}

    def prepare(self) -> Any:
        """The names of the contenders, or a `Failed`."""
        inductor.compile_threads = COMPILE_THREADS
        dynamo.recompile_limit = RECOMPILE_LIMIT
        module, function = KINDS[self._kind]
        try:
            make: Makers = getattr(importlib.import_module(module), function)
            self._makers = make(self._case, make_batches(self._case, self._torch_device), self._device)
        except Exception as error:
            yield _failed(error)
        else:
            yield list(self._makers)

    def build(self, deadline: float) -> Any:
        """For each contender its name with its peak of extra bytes or a `Failed`; then None."""
        for name, make in self._makers.items():
            if time.monotonic() > deadline:
                yield name, Failed("left out: no time left to build it")
                continue
            try:
                self._ready[name] = build(make, self._torch_device)
            except Exception as error:
                yield name, _failed(error)
            else:
                yield name, self._ready[name].extra
        yield None

    def turns(self, name: str, count: int, seconds: float) -> Any:
        """The seconds a batch of each turn, or a `Failed`."""
        contender, each, extra = self._ready[name]
        try:
            found = contender.turns(min(self._case.steps, max(FEWEST, int(seconds / each))), count)
        except Exception as error:
            yield _failed(error)
        else:
            self._ready[name] = Built(contender, min(found), extra)
            yield found


def _failed(error: Exception) -> Failed:
    lines = str(error).strip().splitlines() or [""]
    return Failed(f"{type(error).__name__}: {lines[0]}", traceback.format_exc())
