"""The peer: torch.distributed.pipelining, two ranks over gloo on this machine, kept alive between turns."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from freewheel.bench._machine import free_port
from freewheel.bench._network import OPTIMIZER, stages_of

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


class TorchPipelining:
    """One rank a stage, each with one intra-op thread, the same cut, optimizer and batches as everybody else.

    Args:
        schedule: `GPipe` or `1F1B`.
        micro: The number of micro-batches.
        cut: The name of the layer at which the second stage begins.
    """

    def __init__(self, *, schedule: str, micro: int, cut: str) -> None:
        self.name = f"torch pipelining, {schedule}, M={micro}"
        self._arguments = (schedule, micro, cut)
        self._ranks: list[mp.Process] = []  # pyright: ignore[reportInvalidTypeForm]
        self._lines: list[Connection] = []

    def start(self) -> TorchPipelining:
        """Starts the two ranks and waits until they are ready."""
        context, port = mp.get_context("spawn"), free_port()
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, port, theirs, *self._arguments), daemon=True)
            process.start()
            self._ranks.append(process)
            self._lines.append(ours)
        self._answers()
        return self

    def turn(self, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Trains on the batches; the time is that of the slower rank."""
        for line in self._lines:
            line.send(list(batches))
        self._answers()  # both have the batches: now both start
        for line in self._lines:
            line.send("go")
        return max(self._answers())

    def stop(self) -> None:
        """Ends the ranks."""
        for line in self._lines:
            line.send(None)
        for process in self._ranks:
            process.join(10)
            if process.is_alive():
                process.kill()

    def _answers(self) -> list[float]:
        answers = [line.recv() for line in self._lines]
        for answer in answers:
            if isinstance(answer, str):
                raise RuntimeError(f"{self.name} failed:\n{answer}")
        return answers


def _rank(rank: int, port: int, line: Connection, schedule: str, micro: int, cut: str) -> None:
    """One rank: answers every list of batches with the seconds they took."""
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        module: nn.Module = stages_of(cut)[rank]
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        runner = SCHEDULES[schedule](stage, micro, loss_fn=F.cross_entropy)
        optimizer = OPTIMIZER(module.parameters())
        line.send(0.0)
        while (batches := line.recv()) is not None:
            line.send(0.0)
            line.recv()
            line.send(_steps(rank, runner, optimizer, batches))
    except BaseException:
        line.send(traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _steps(rank: int, runner: Any, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> float:
    started = time.perf_counter()
    for x, target in batches:
        optimizer.zero_grad()
        if rank == 0:
            runner.step(x)
        else:
            runner.step(target=target)
        optimizer.step()
    return time.perf_counter() - started
