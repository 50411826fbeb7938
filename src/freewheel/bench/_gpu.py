"""`freewheel bench gpu`: methods as CUDA graphs beside plain PyTorch and JAX on one GPU.

Every contender trains the same network on the same batches, which are on the device already, with the same optimizer.
Each case has a process for every kind of contender: they compile at the same time, then they take turns, each alone on
the GPU, and the medians over the turns count.

    cuts       case 0   case 1   …                    measured one after the other
    build      case 0 | case 1 | …                    all at once
    rounds     case 0: all contenders, case 1: …      one after the other, `repeats` times
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch

from freewheel._errors import one_of
from freewheel.bench._gpu_cases import CASES, SWEEP, Case
from freewheel.bench._gpu_compare import Row, compare, findings, speed_ups
from freewheel.bench._gpu_contender import Memory
from freewheel.bench._gpu_process import Failed, Worker
from freewheel.bench._machine import gpu_machine

DEVICES = ("cuda", "cpu")
TURNS = 3  # of each contender in a round
SECONDS = 0.35  # of a turn, roughly
LIMIT = 520.0  # seconds
BUILDING = 0.6  # of the limit: what is not begun to be built by then is left out
BUILT = 0.75  # of the limit: who is still building then is left out, so that the others have their turns
MIB = 1 << 20


def gpu(
    *,
    cases: Sequence[str] = (),
    sweep: bool = False,
    repeats: int = 1,
    limit: float = LIMIT,
    device: str = "cuda",
    log: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measure all contenders of every case; Ctrl-C ends it with the results so far.

    Args:
        cases: Names of cases; all by default.
        sweep: Whether to measure AsyncFGD over K and the batch size instead.
        repeats: Rounds, in each of which every contender has three turns.
        limit: Seconds after which it ends with the results so far.
        device: `cuda`; or `cpu`, without CUDA graphs, to try it out.
        log: Called with a line of progress.

    Returns:
        `cases`, a list: `name`, `title` and `rows` of each (a row per contender: `name`, `kind`, median `seconds` a
        batch, `images_per_second`, `turns`, `extra` and `reserved` bytes beyond weights, optimizer state and data;
        `over_eager` and `over_best`, how many times as fast as eager backpropagation and as the best of the others it
        is; or an `error`). `findings`, a list: what is expected (`about`, `limit`) and what was `found`. `speed_ups` of
        a sweep, over FGD: `net`, `batch`, `name`, `speed_up`. `machine`; `interrupted`.
    """
    known = SWEEP if sweep else CASES
    for name in cases:
        one_of("case", name, [case.name for case in known])
    one_of("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda': torch finds no GPU here, which `freewheel bench gpu` needs")
    chosen = [case for case in known if case.name in cases or not cases]
    started, interrupted = time.monotonic(), False
    run = _Rounds(chosen, device, started + limit, log)
    try:
        run.prepare()
        run.build(started + BUILDING * limit, started + BUILT * limit)
        for repeat in range(repeats):
            run.round(f"round {repeat + 1} of {repeats}")
    except KeyboardInterrupt:
        interrupted = True
    except TimeoutError:
        log(f"ended after {limit:g} seconds with what was measured")
    finally:
        run.stop()
    run.note_left_out()
    found = [compare(case, run.rows[case.name]) for case in chosen]
    return {
        "cases": found,
        "findings": findings(found),
        "speed_ups": speed_ups(found) if sweep else [],
        "machine": gpu_machine(device),
        "interrupted": interrupted,
    }


class _Rounds:
    """The workers of all cases, and what they have found."""

    def __init__(self, cases: Sequence[Case], device: str, deadline: float, log: Callable[[str], Any]) -> None:
        self.rows: dict[str, dict[str, Row]] = {case.name: {} for case in cases}
        self._deadline, self._log, self._started = deadline, log, time.monotonic()
        self._workers = [Worker(part, kind, device) for case in cases for kind, part in case.parts]
        self._names: dict[Worker, list[str]] = {}

    def prepare(self) -> None:
        """Measure where to cut, one case after the other."""
        for worker in [*self._workers]:
            worker.send("prepare")
            names = worker.receive(self._deadline)
            if isinstance(names, Failed):
                self._row(worker, "all").fail(*names)
                self._tell(worker, names.error)
                self._dismiss(worker)
            else:
                self._names[worker] = names
                for name in names:
                    self._row(worker, name)
                self._tell(worker, f"{len(names)} contenders")

    def build(self, deadline: float, end: float) -> None:
        """Build all contenders, all workers at once; none is begun after the deadline, or waited for after the end."""
        for worker in self._workers:
            worker.send("build", deadline)
        building = {worker.connection: worker for worker in self._workers}
        while building:
            answering = wait(list(building), max(0.0, end - time.monotonic()))
            for worker in [worker for connection, worker in building.items() if connection in answering]:
                answer = worker.receive(self._deadline)
                if answer is None or isinstance(answer, Failed):
                    del building[worker.connection]
                    self._lose(worker, answer)
                else:
                    self._built(worker, *answer)
            if not answering:
                for worker in building.values():
                    self._lose(worker, Failed("left out: building took too long"))
                return

    def _built(self, worker: Worker, name: str, extra: Memory | Failed) -> None:
        row = self._row(worker, name)
        if isinstance(extra, Failed):
            row.fail(*extra)
            self._tell(worker, f"{name}: {extra.error}")
        else:
            row.extra, row.reserved = extra
            self._tell(worker, f"{name}: built" + ("" if row.extra is None else f", +{row.extra / MIB:.0f} MiB"))

    def round(self, title: str) -> None:
        """Let every contender have its turns."""
        for worker in [*self._workers]:
            for row in [self._row(worker, name) for name in self._names[worker]]:
                if row.error is None and worker in self._workers:
                    worker.send("turns", row.name, TURNS, SECONDS)
                    answer = worker.receive(self._deadline)
                    if isinstance(answer, Failed):
                        row.fail(*answer)
                        self._tell(worker, f"{row.name}: {answer.error}")
                    else:
                        row.turns += answer
                        took = ", ".join(f"{1e3 * seconds:.3f}" for seconds in answer)
                        self._tell(worker, f"{row.name}: {took} ms ({title})")

    def note_left_out(self) -> None:
        """Say of every contender without a turn that it had none."""
        for row in [row for rows in self.rows.values() for row in rows.values()]:
            if row.error is None and not row.turns:
                row.fail("left out: not measured before the end", "")

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()

    def _lose(self, worker: Worker, failed: Failed | None) -> None:
        """Give up a worker whose process has ended."""
        if failed is None:
            return
        for row in [self._row(worker, name) for name in self._names[worker]]:
            if row.error is None:
                row.fail(*failed)
        self._tell(worker, failed.error)
        self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.stop()

    def _row(self, worker: Worker, name: str) -> Row:
        return self.rows[worker.case.name].setdefault(f"{worker.kind}: {name}", Row(worker.kind, name))

    def _tell(self, worker: Worker, text: str) -> None:
        self._log(f"{time.monotonic() - self._started:4.0f} s  {worker.case.name}, {worker.kind}: {text}")
