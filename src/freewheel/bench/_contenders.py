"""The contenders of the speed benchmark: same network, cut, optimizer and batches, trained in different ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._cores import cores, intra_op_threads
from freewheel.bench._network import OPTIMIZER, Cut, compiled_cut, network, stages_of
from freewheel.bench._team import Batches, Turn
from freewheel.methods import METHODS, Method
from freewheel.trainer import Trainer

ASYNCHRONOUS = ("pipedream", "fdg")
BY_HAND = "bp, by hand"
TRACED = ("threads", "processes")  # the runtimes on which the cost of a trace is measured
EDGE = 4  # the fewest batches to fill and to drain a pipeline; they are not timed


def freewheel_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Freewheel: sequential runs, asynchronous runs, and a hand-written sequential loop."""
    first = ASYNCHRONOUS[0]
    threads = [(method, "threads") for method in ASYNCHRONOUS]
    runs = [("bp", "simulate"), (first, "simulate"), *threads, (first, "processes")]
    ours: dict[str, Turn] = {BY_HAND: _by_hand(cut)}
    for method, runtime in runs:
        ours[f"{method}, {runtime}"] = timed_trainer(stages_of(cut), method, runtime)
        if method == first and runtime in TRACED:
            ours[f"{method}, {runtime}, traced"] = timed_trainer(stages_of(cut), method, runtime, trace=True)
    return ours


def compiled_freewheel_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Freewheel with compiled stages: a sequential run, and asynchronous ones."""
    first = ASYNCHRONOUS[0]
    cut = compiled_cut(cut, batch_size, METHODS[first]())
    runtimes = ("simulate", "threads", "processes")
    return {f"{first}, {r}": timed_trainer(stages_of(cut), first, r, compile=True) for r in runtimes}


def timed_trainer(
    stages: Sequence[nn.Module],
    method: str | Method,
    runtime: str,
    *,
    compile: bool = False,
    trace: bool = False,
    **optimizer: float,
) -> Turn:
    """A trainer with one thread per stage, timed while its pipeline is full."""
    options: dict[str, Any] = {"runtime": runtime, "threads": 1, "check": False, "compile": compile}
    make = partial(OPTIMIZER, **optimizer)
    trainer = Trainer(stages, method=method, loss=F.cross_entropy, optimizer=make, **options)

    def turn(batches: Batches) -> float:
        # Only the middle one of three epochs counts: the pipeline is full when it begins and when it ends.
        # The first is a sixth as long: worker processes start in every turn, and are slow at first.
        return trainer.fit(Laps(batches, max(EDGE, len(batches) // 6)), 3, trace=trace).epochs[1].seconds

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


def compiled_pytorch_runs(batch_size: int, cut: Cut, rank: int, port: int) -> dict[str, Turn]:
    """Plain PyTorch with `torch.compile`, on one core and on all cores."""
    models = {n: torch.compile(network(), dynamic=False) for n in sorted({1, cores()})}
    return {f"{n} core{'s' * (n > 1)}": backprop(model, threads=n) for n, model in models.items()}


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
