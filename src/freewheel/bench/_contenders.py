"""The contenders of the speed benchmark: same network, cut, optimizer and batches, trained in different ways."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from freewheel._cores import cores, intra_op_threads
from freewheel.bench._network import OPTIMIZER, Cut, network, stages_of
from freewheel.bench._team import Batches, Turn
from freewheel.methods import Method
from freewheel.trainer import Trainer

ASYNCHRONOUS = ("pipedream", "fdg")
MICRO = (2, 4, 8)
BY_HAND = "bp, by hand"
EDGE = 4  # the fewest batches to fill and to drain a pipeline; they are not timed


def freewheel_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Freewheel: sequential runs, asynchronous runs, and a hand-written sequential loop."""
    first = ASYNCHRONOUS[0]
    threads = [(method, "threads") for method in ASYNCHRONOUS]
    runs = [("bp", "simulate"), (first, "simulate"), *threads, (first, "processes")]
    ours = {f"{m}, {runtime}": timed_trainer(stages_of(cut), m, runtime) for m, runtime in runs}
    return {BY_HAND: _by_hand(cut)} | ours


def timed_trainer(stages: Sequence[nn.Module], method: str | Method, runtime: str, **optimizer: float) -> Turn:
    """A trainer with one thread per stage, timed while its pipeline is full."""
    make = partial(OPTIMIZER, **optimizer)
    trainer = Trainer(
        stages, method=method, loss=F.cross_entropy, optimizer=make, runtime=runtime, threads=1, check=False
    )

    def turn(batches: Batches) -> float:
        # Only the middle one of three epochs counts: the pipeline is full when it begins and when it ends.
        # The first is a sixth as long: worker processes start in every turn, and are slow at first.
        return trainer.fit(Laps(batches, max(EDGE, len(batches) // 6)), 3).epochs[1].seconds

    return turn


class Laps:
    """A loader for three passes, of which the first and the last are `edge` batches long."""

    def __init__(self, batches: Batches, edge: int) -> None:
        self._passes = iter([batches[:edge], batches, batches[:edge]])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(next(self._passes))


def pytorch_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Plain PyTorch on one core and on all cores."""
    return {f"{n} core{'s' * (n > 1)}": backprop(network(), threads=n) for n in sorted({1, cores()})}


def backprop(model: Any, *, threads: int = 1, **optimizer: Any) -> Turn:
    """Plain PyTorch training on this number of threads."""
    sgd = OPTIMIZER(model.parameters(), **optimizer)

    def step(x: Tensor, target: Tensor) -> None:
        sgd.zero_grad()
        F.cross_entropy(model(x), target).backward()
        sgd.step()

    return timed_steps(step, threads)


def timed_steps(step: Callable[[Tensor, Tensor], object], threads: int = 1) -> Turn:
    """The time of a step for each batch, on this number of threads."""

    def turn(batches: Batches) -> float:
        with intra_op_threads(threads):
            started = time.perf_counter()
            for x, target in batches:
                step(x, target)
            return time.perf_counter() - started

    return turn


def _by_hand(cut: Cut) -> Turn:
    """The two stages in a hand-written loop: a sequential run without a plan."""
    first, second = stages_of(cut)
    optimizers = OPTIMIZER(first.parameters(), foreach=True), OPTIMIZER(second.parameters(), foreach=True)

    def step(x: Tensor, target: Tensor) -> None:
        h = first(x)
        sent = tuple(t.detach().requires_grad_() for t in (h if isinstance(h, tuple) else (h,)))
        F.cross_entropy(second(sent if isinstance(h, tuple) else sent[0]), target).backward()
        torch.autograd.backward(h, [t.grad for t in sent])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return timed_steps(step)


def pipelining_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """torch.distributed.pipelining over gloo, one rank per stage, for every number of micro-batches that fits."""
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    schedules = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
    return {
        f"{name}, M={micro}": _schedule(schedule, micro, cut, rank)
        for name, schedule in schedules.items()
        for micro in MICRO
        if micro <= batch_size
    }


class _Unpacked(nn.Module):
    """A stage that takes the values at the boundary as separate arguments, as torch passes them."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, *values: Tensor) -> Any:
        """The stage's output."""
        return self.stage(values[0] if len(values) == 1 else values)


def _schedule(schedule: Any, micro: int, cut: Cut, rank: int) -> Turn:
    module = _Unpacked(stages_of(cut)[rank])
    runner = schedule(PipelineStage(module, rank, 2, torch.device("cpu")), micro, loss_fn=F.cross_entropy)
    optimizer = OPTIMIZER(module.parameters())

    def turn(batches: Batches) -> float:
        dist.barrier()
        started = time.perf_counter()
        for x, target in batches:
            optimizer.zero_grad()
            if rank == 0:
                runner.step(x)
            else:
                runner.step(target=target)
            optimizer.step()
        return time.perf_counter() - started

    return turn
