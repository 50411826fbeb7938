"""torch.distributed.pipelining in the speed benchmark: its schedules over gloo, on two ranks.

Schedules with one stage per rank have the cut of all other contenders. The others have two, of four equal parts:

    loop     rank 0: stages 0, 2     rank 1: stages 1, 3
    V        rank 0: stages 0, 3     rank 1: stages 1, 2
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from freewheel._trees import map_tensors
from freewheel.bench._network import OPTIMIZER, SHAPE, Cut, network, stages_of
from freewheel.bench._team import Batches, Turn
from freewheel.split import split

MICRO = (2, 4, 8)
RANKS = 2
LOOP, V = ((0, 2), (1, 3)), ((0, 3), (1, 2))


@dataclass(frozen=True)
class Schedule:
    """A schedule of PyTorch.

    Args:
        make: Its class.
        placement: The stages of each rank.
        least: The fewest micro-batches.
        copies: Whether the outputs of its stages are copies. Where weights' gradients are computed apart from those of
            inputs, torch detaches the outputs in between, although a ReLU may have saved them.
    """

    make: Any
    placement: tuple[tuple[int, ...], ...] = ((0,), (1,))
    least: int = 1
    copies: bool = False

    @property
    def stages(self) -> int:
        """The number of stages."""
        return sum(map(len, self.placement))


SCHEDULES = {
    "GPipe": Schedule(ScheduleGPipe),
    "1F1B": Schedule(Schedule1F1B),
    "interleaved 1F1B": Schedule(ScheduleInterleaved1F1B, LOOP),
    "interleaved zero bubble": Schedule(ScheduleInterleavedZeroBubble, LOOP, copies=True),
    "ZBV zero bubble": Schedule(ScheduleZBVZeroBubble, V, copies=True),
    "DualPipeV": Schedule(ScheduleDualPipeV, V, least=4, copies=True),
}


def pipelining_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Every schedule, for every number of micro-batches that fits."""
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    cuts = {RANKS: cut, 2 * RANKS: _quarters(batch_size, rank)}
    return {
        f"{name}, M={micro}": Scheduled(schedule, micro, cuts[schedule.stages], rank)
        for name, schedule in SCHEDULES.items()
        for micro in MICRO
        if schedule.least <= micro <= batch_size
    }


def _quarters(batch_size: int, rank: int) -> Cut:
    """Where to cut the network in four; rank 0 measures it."""
    found: list[Any] = [None]
    if rank == 0:
        report = split(network(), 2 * RANKS, example=torch.randn(batch_size, *SHAPE), threads=1).report
        found = [report.balance]
    dist.broadcast_object_list(found)
    return found[0]


class _Unpacked(nn.Module):
    """A stage that takes the values at the boundary as separate arguments, as torch passes them, and sends no views."""

    def __init__(self, stage: nn.Module, copies: bool) -> None:
        super().__init__()
        self.stage, self._copies = stage, copies

    def forward(self, *values: Tensor) -> Any:
        """The stage's output, contiguous, or a copy of it."""
        out = self.stage(values[0] if len(values) == 1 else values)
        whole = map_tensors(Tensor.contiguous, out)  # a shortcut that takes every second pixel is not
        return map_tensors(Tensor.clone, whole) if self._copies else whole


class Scheduled:
    """This rank's part of a pipeline; called with batches, it trains and returns the seconds."""

    def __init__(self, schedule: Schedule, micro: int, cut: Cut, rank: int) -> None:
        mine, stages = schedule.placement[rank], stages_of(cut)
        self.modules = nn.ModuleList([_Unpacked(stages[index], schedule.copies) for index in mine])
        made = [
            PipelineStage(module, index, schedule.stages, torch.device("cpu"))
            for module, index in zip(self.modules, mine)
        ]
        self._runner = schedule.make(made if len(made) > 1 else made[0], micro, loss_fn=F.cross_entropy)
        self._optimizer = OPTIMIZER(self.modules.parameters())
        self._first, self._last = 0 in mine, schedule.stages - 1 in mine

    def __call__(self, batches: Batches) -> float:
        """Train on the batches."""
        dist.barrier()
        started = time.perf_counter()
        for x, target in batches:
            self._optimizer.zero_grad()
            self.backward(x, target)
            self._optimizer.step()
        return time.perf_counter() - started

    def backward(self, x: Tensor, target: Tensor) -> None:
        """Compute the gradients of a batch."""
        self._runner.step(*[x] * self._first, **{"target": target} if self._last else {})
