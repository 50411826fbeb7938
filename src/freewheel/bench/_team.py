"""Processes for one kind of contender, which stay alive between turns.

Every kind has its own processes, so that none is affected by what another does to its process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from freewheel.bench._machine import free_port
from freewheel.bench._network import SHAPE, Cut

Batches = Sequence[tuple[Tensor, Tensor]]
Turn = Callable[[Batches], float]  # trains on the batches, and returns the seconds it took
Maker = Callable[[int, Cut, int, int], dict[str, Turn]]  # batch size, cut, rank, port -> contenders by name


class Team:
    """Processes that build contenders and let them take turns.

    Args:
        kind: What the contenders have in common.
        make: Builds the contenders for a batch size; called in each process.
        ranks: The number of processes.
    """

    def __init__(self, kind: str, make: Maker, *, ranks: int = 1) -> None:
        self.kind = kind
        context, port = mp.get_context("spawn"), free_port()
        self._processes: list[SpawnProcess] = []
        self._connections: list[Connection] = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            # Not a daemon: contenders may start processes. It ends when its connection is closed.
            process = context.Process(target=_serve, args=(theirs, make, rank, port))
            process.start()
            self._processes.append(process)
            self._connections.append(ours)

    def prepare(self, batch_size: int, cut: Cut, steps: int) -> list[str]:
        """Build the contenders and their batches, and return their names."""
        return self._ask("prepare", batch_size, cut, steps)[0]

    def turn(self, name: str, steps: int) -> float:
        """Let a contender train for this number of steps; returns the time of the slowest process."""
        return max(self._ask("turn", name, steps))

    def stop(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():  # it waits for a rank that failed
                process.kill()
                process.join()

    def _ask(self, *command: Any) -> list[Any]:
        for connection in self._connections:
            connection.send(command)
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._connections):
            for connection in wait([each for each in self._connections if each not in answers]):
                assert isinstance(connection, Connection)
                answers[connection] = answer = connection.recv()
                if isinstance(answer, _Failure):  # other ranks may be waiting for this one
                    raise RuntimeError(f"a contender of {self.kind!r} failed:\n{answer}")
        return [answers[connection] for connection in self._connections]


class _Failure(str):
    """A traceback."""


def _serve(connection: Connection, make: Maker, rank: int, port: int) -> None:
    """Answer commands until the connection is closed."""
    torch.set_num_threads(1)
    contenders: dict[str, Turn] = {}
    batches: list[tuple[Tensor, Tensor]] = []
    while True:
        try:
            verb, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if verb == "prepare":
                batch_size, cut, steps = arguments
                batches = make_batches(batch_size, steps)
                contenders = make(batch_size, cut, rank, port)
                connection.send(list(contenders))
            else:
                name, steps = arguments
                connection.send(contenders[name](batches[:steps]))
        except Exception:
            connection.send(_Failure(traceback.format_exc()))


def make_batches(batch_size: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Random images and classes, always the same."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, *SHAPE)
    return [
        (torch.randn(shape, generator=generator), torch.randint(10, (batch_size,), generator=generator))
        for _ in range(count)
    ]
