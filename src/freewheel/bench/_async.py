"""`freewheel bench async`: methods that race on shared weights, and plain SGD, trained to a target accuracy.

Every contender trains the same network on the digits with the same optimizer, from the same weights, until its test
accuracy reaches the target. They take turns, a round for each seed, so that a noisy machine is noisy for all of them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from freewheel import data, models
from freewheel._cores import cores
from freewheel.bench._machine import machine
from freewheel.methods import BP, LAPSGD, LPPSGD, AsyncBU, AsyncLU, Hogwild, Method
from freewheel.trainer import EpochEnd, History, Trainer

WARM_UP = 128  # images
OPTIMIZER = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)
# Additions to one tensor without a lock:
SIZES = (16, 1024, 65536, 1 << 20)
THREADS = 2
MOST_CALLS = 20_000  # of a thread; float32 counts them all exactly
WORK = 40_000_000  # additions of single numbers per thread, roughly


class RaceContender(NamedTuple):
    """A method and its runtime."""

    name: str
    method: Method
    runtime: str
    threads: int = 1


def all_contenders() -> list[RaceContender]:
    """All contenders; none has more threads than cores, except for the forward workers of async-lu and async-bu."""
    every = cores()
    return [
        RaceContender("async-lu", AsyncLU(), "threads"),
        RaceContender("async-lu, locked", AsyncLU(locked=True), "threads"),
        RaceContender("async-bu", AsyncBU(), "threads"),
        RaceContender("hogwild", Hogwild(workers=every), "processes"),
        RaceContender("lap-sgd", LAPSGD(groups=every), "processes"),
        RaceContender("lpp-sgd", LPPSGD(groups=every), "processes"),
        RaceContender("SGD, 1 core", BP(), "simulate"),
        RaceContender(f"SGD, {every} cores", BP(), "simulate", every),
    ]


def asynchronous(
    *,
    repeats: int = 3,
    epochs: int = 20,
    target: float = 0.97,
    limit: int | None = None,
    contenders: Sequence[RaceContender] | None = None,
    log: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measure all contenders.

    Args:
        repeats: Rounds, each with its own seed.
        epochs: The most epochs for each contender.
        target: The test accuracy at which training stops.
        limit: The number of training images; all by default.
        contenders: The contenders; all by default.
        log: Called with a line of progress.

    Returns:
        `rows`, one per contender: its name, and medians over the rounds of the seconds and epochs to the target (None
        if a round did not reach it), of the images/s of an epoch, of the best accuracy, and of the staleness of all
        layers and of each; `runs` has the same for each round. `additions`: the share of additions that are lost
        without a lock, and the cost of the lock.
    """
    contenders = all_contenders() if contenders is None else contenders
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        _train(contender, 0, 1, 1.0, WARM_UP)
    for seed in range(repeats):
        for contender in contenders:
            found = _summary(_train(contender, seed, epochs, target, limit), target)
            runs[contender.name].append(found)
            took = "target not reached" if found["seconds"] is None else f"{found['seconds']:.2f} s to the target"
            log(f"round {seed + 1} of {repeats}: {contender.name}, {took}, {found['images_per_second']:,.0f} images/s")
    return {
        "rows": [{"name": name, **_medians(rounds), "runs": rounds} for name, rounds in runs.items()],
        "target": target,
        "epochs": epochs,
        "additions": additions(),
        "machine": machine(),
    }


def _train(contender: RaceContender, seed: int, epochs: int, target: float, limit: int | None) -> History:
    """Train a network from this seed to the target."""
    digits = data.load("digits", seed=seed, train_limit=limit)
    torch.manual_seed(seed)
    net = models.build("digits-cnn", num_classes=digits.classes, in_shape=digits.in_shape)
    trainer = Trainer(
        [net],
        method=contender.method,
        loss=F.cross_entropy,
        optimizer=OPTIMIZER,
        runtime=contender.runtime,
        threads=contender.threads,
        check=False,
        seed=seed,
    )

    def reached(end: EpochEnd) -> bool:
        score = end.record.validation
        return score is not None and score.metric is not None and score.metric >= target

    return trainer.fit(digits.train, epochs, validate=digits.test, callbacks=[reached], progress=False)


def _summary(history: History, target: float) -> dict[str, Any]:
    """The result of one training."""
    metrics = [metric or 0.0 for metric in history.metrics]
    reached = metrics[-1] >= target
    return {
        "seconds": sum(epoch.seconds for epoch in history.epochs) if reached else None,
        "epochs": len(history.epochs) if reached else None,
        "images_per_second": statistics.median(epoch.images_per_second for epoch in history.epochs),
        "accuracy": max(metrics),
        "staleness": statistics.fmean(epoch.staleness[0] for epoch in history.epochs),
        "layers": {
            name: statistics.fmean(epoch.layers[name].staleness for epoch in history.epochs)
            for name in history.epochs[-1].layers
        },
    }


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; None where a round has none."""

    def middle(values: list[Any]) -> float | None:
        return None if None in values else statistics.median(values)

    keys = ("seconds", "epochs", "images_per_second", "accuracy", "staleness")
    layers = {name: middle([run["layers"][name] for run in rounds]) for name in rounds[0]["layers"]}
    return {**{key: middle([run[key] for run in rounds]) for key in keys}, "layers": layers}


def additions(*, sizes: Sequence[int] = SIZES, work: int = WORK, repeats: int = 3) -> list[dict[str, Any]]:
    """Let threads add 1 to every number of a shared tensor repeatedly, with a lock and without.

    Returns:
        For each size the calls per thread, and medians over the repeats of the share of lost additions and of the
        microseconds per call, each free and locked.
    """
    rows = []
    for size in sizes:
        calls = min(max(work // size, 100), MOST_CALLS)
        row: dict[str, Any] = {"size": size, "calls": calls, "threads": THREADS}
        for suffix, guard in (("", nullcontext()), ("_locked", threading.Lock())):
            lost, seconds = zip(*(_race(size, calls, guard) for _ in range(repeats)))
            row[f"lost{suffix}"] = statistics.median(lost)
            row[f"microseconds{suffix}"] = statistics.median(seconds) / (THREADS * calls) * 1e6
        rows.append(row)
    return rows


def _race(size: int, calls: int, guard: AbstractContextManager[Any]) -> tuple[float, float]:
    """The share of lost additions, and the seconds it took."""
    tensor, one = torch.zeros(size), torch.ones(size)
    begin = threading.Barrier(THREADS + 1)

    def add() -> None:
        torch.set_num_threads(1)
        begin.wait()
        for _ in range(calls):
            with guard:
                tensor.add_(one)

    workers = [threading.Thread(target=add) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    begin.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    return 1.0 - tensor.double().mean().item() / (THREADS * calls), seconds
