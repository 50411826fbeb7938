"""A team: processes of its own for one kind of contender, kept alive between turns.

Every kind runs in its own processes, so that none profits or suffers from what another does to its process.
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
Turn = Callable[[Batches], float]  # trains on the batches, returns the seconds it took
Maker = Callable[[int, Cut, int, int], dict[str, Turn]]  # batch size, cut, rank, port -> contenders by name


class Team:
    """Processes that build contenders and let them take turns.

    Args:
        kind: What the contenders have in common.
        make: Called in each process for each batch size; gives the contenders.
        ranks: How many processes work together.
    """

    def __init__(self, kind: str, make: Maker, *, ranks: int = 1) -> None:
        self.kind = kind
        context, port = mp.get_context("spawn"), free_port()
        self._processes: list[SpawnProcess] = []
        self._lines: list[Connection] = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            # Not a daemon: contenders may start processes of their own. It ends when its line is closed.
            process = context.Process(target=_serve, args=(theirs, make, rank, port))
            process.start()
            self._processes.append(process)
            self._lines.append(ours)

    def prepare(self, batch_size: int, cut: Cut, steps: int) -> list[str]:
        """Builds the contenders and their batches; returns their names."""
        return self._ask("prepare", batch_size, cut, steps)[0]

    def turn(self, name: str, steps: int) -> float:
        """Lets a contender train for so many steps; the time is that of the slowest process."""
        return max(self._ask("turn", name, steps))

    def stop(self) -> None:
        """Ends the processes."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():  # still waiting for a rank that failed
                process.kill()
                process.join()

    def _ask(self, *command: Any) -> list[Any]:
        for line in self._lines:
            line.send(command)
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._lines):
            for line in wait([line for line in self._lines if line not in answers]):
                assert isinstance(line, Connection)
                answers[line] = answer = line.recv()
                if isinstance(answer, _Failure):  # the others may be waiting for this one
                    raise RuntimeError(f"a contender of {self.kind!r} failed:\n{answer}")
        return [answers[line] for line in self._lines]


class _Failure(str):
    """What went wrong, as text."""


def _serve(line: Connection, make: Maker, rank: int, port: int) -> None:
    """Answers commands until the line is closed."""
    torch.set_num_threads(1)
    contenders: dict[str, Turn] = {}
    batches: list[tuple[Tensor, Tensor]] = []
    while True:
        try:
            verb, *arguments = line.recv()
        except EOFError:
            return
        try:
            if verb == "prepare":
                batch_size, cut, steps = arguments
                batches = make_batches(batch_size, steps)
                contenders = make(batch_size, cut, rank, port)
                line.send(list(contenders))
            else:
                name, steps = arguments
                line.send(contenders[name](batches[:steps]))
        except Exception:
            line.send(_Failure(traceback.format_exc()))


def make_batches(batch_size: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Always the same random images and classes."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, *SHAPE)
    return [
        (torch.randn(shape, generator=generator), torch.randint(10, (batch_size,), generator=generator))
        for _ in range(count)
    ]
