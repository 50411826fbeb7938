"""`freewheel bench speed`: one network, one cut, trained in several ways, interleaved in one run.

Every contender trains the same ResNet-20-shaped network on the same batches with the same optimizer. They take turns,
a few steps each, and the medians over the turns are compared, so that a noisy machine is noisy for all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel._cores import cores, intra_op_threads
from freewheel.bench._machine import machine
from freewheel.bench._network import OPTIMIZER, SHAPE, network, stages_of
from freewheel.bench._pipelining import TorchPipelining
from freewheel.split import split
from freewheel.trainer import Trainer

ASYNCHRONOUS = ("pipedream", "fdg")
MICRO = (2, 4, 8)


@dataclass(frozen=True)
class Contender:
    """A way to train: `turn` trains on the given batches and returns the seconds it took."""

    name: str
    kind: str
    turn: Callable[[Sequence[tuple[Tensor, Tensor]]], float]


def speed(
    *,
    batch_sizes: Sequence[int] = (64, 4),
    repeats: int = 5,
    seconds: float = 1.0,
    say: Callable[[str], Any] = print,
) -> dict[str, dict[str, Any]]:
    """Measures all contenders for each batch size.

    Args:
        batch_sizes: The batch sizes.
        repeats: Turns that each contender gets.
        seconds: About how long a turn takes.
        say: Gets a line whenever something has been done.

    Returns:
        For each batch size its `rows` (one a contender: name, kind, median seconds a step, images/s, spread) and its
        `ratios`: how many times faster the best asynchronous run on threads is than our own sequential run
        (`sequential`), than plain PyTorch on all cores (`bp_all_cores`) and on its best number of cores (`bp_best`),
        and than the best of torch.distributed.pipelining (`torch_pipelining`).
    """
    out: dict[str, dict[str, Any]] = {}
    for batch_size in batch_sizes:
        say(f"batch size {batch_size}: starting")
        with _Field(batch_size) as field:
            out[str(batch_size)] = _measure(field, batch_size, repeats, seconds, say)
    return out


class _Field:
    """The contenders for one batch size; leaving it stops the processes of those that have any."""

    def __init__(self, batch_size: int) -> None:
        example = torch.randn(batch_size, *SHAPE)
        with intra_op_threads(1):
            report = split(network(), 2, example=example).report
        self.cut = report.names[1][0]
        self._peers = [
            TorchPipelining(schedule=schedule, micro=micro, cut=self.cut)
            for schedule in ("GPipe", "1F1B")
            for micro in MICRO
            if micro <= batch_size
        ]

    def __enter__(self) -> _Field:
        own = [
            Contender("freewheel, sequential (simulate)", "sequential", self._freewheel(ASYNCHRONOUS[0], "simulate"))
        ]
        own += [Contender(f"freewheel, {m} on threads", "threads", self._freewheel(m, "threads")) for m in ASYNCHRONOUS]
        counts = sorted({1, cores()})
        plain = [Contender(f"PyTorch, {n} core{'s' * (n > 1)}", f"bp_{n}", _plain(n)) for n in counts]
        peers = [Contender(peer.name, "torch_pipelining", peer.start().turn) for peer in self._peers]
        self.contenders = [*own, *plain, *peers]
        return self

    def __exit__(self, *exception: object) -> None:
        for peer in self._peers:
            peer.stop()

    def _freewheel(self, method: str, runtime: str) -> Callable[[Sequence[tuple[Tensor, Tensor]]], float]:
        trainer = Trainer(
            stages_of(self.cut), method=method, loss=F.cross_entropy, optimizer=OPTIMIZER, runtime=runtime, threads=1
        )

        def turn(batches: Sequence[tuple[Tensor, Tensor]]) -> float:
            started = time.perf_counter()
            trainer.fit(batches)
            return time.perf_counter() - started

        return turn


def _plain(threads: int) -> Callable[[Sequence[tuple[Tensor, Tensor]]], float]:
    model = network()
    optimizer = OPTIMIZER(model.parameters())

    def turn(batches: Sequence[tuple[Tensor, Tensor]]) -> float:
        with intra_op_threads(threads):
            started = time.perf_counter()
            for x, target in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), target).backward()
                optimizer.step()
            return time.perf_counter() - started

    return turn


def _measure(field: _Field, batch_size: int, repeats: int, seconds: float, say: Callable[[str], Any]) -> dict[str, Any]:
    """Lets the contenders take turns, and compares their medians."""
    generator = torch.Generator().manual_seed(0)

    def batches(count: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (
                torch.randn(batch_size, *SHAPE, generator=generator),
                torch.randint(10, (batch_size,), generator=generator),
            )
            for _ in range(count)
        ]

    for contender in field.contenders:
        contender.turn(batches(3))  # everybody warms up
    sequential = next(c for c in field.contenders if c.kind == "sequential")
    steps = max(10, round(2 * seconds / (sequential.turn(batches(3)) / 3)))
    data = batches(steps)
    times: dict[str, list[float]] = {c.name: [] for c in field.contenders}
    for repeat in range(repeats):
        for contender in field.contenders:
            times[contender.name].append(contender.turn(data) / steps)
        say(f"batch size {batch_size}: turn {repeat + 1} of {repeats} done, {steps} steps each")
    rows = [_row(contender, times[contender.name], batch_size) for contender in field.contenders]
    return {"rows": rows, "ratios": _ratios(rows), "cut": field.cut, "steps": steps, "machine": machine()}


def _row(contender: Contender, times: list[float], batch_size: int) -> dict[str, Any]:
    middle = statistics.median(times)
    return {
        "name": contender.name,
        "kind": contender.kind,
        "seconds": middle,
        "images_per_second": batch_size / middle,
        "spread": (max(times) - min(times)) / middle,
    }


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times faster the best asynchronous run is than the best of each other kind."""

    def best(*kinds: str) -> float:
        return min(row["seconds"] for row in rows if row["kind"] in kinds)

    ours = best("threads")
    ratios = {
        "sequential": best("sequential") / ours,
        "bp_all_cores": best(f"bp_{cores()}") / ours,
        "bp_best": best("bp_1", f"bp_{cores()}") / ours,
    }
    if any(row["kind"] == "torch_pipelining" for row in rows):
        ratios["torch_pipelining"] = best("torch_pipelining") / ours
    return ratios
