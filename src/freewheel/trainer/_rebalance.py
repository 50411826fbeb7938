"""Cut a model again, by how long its stages take in training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from freewheel._errors import whole_number
from freewheel.split import Stages, recut, scaled, split
from freewheel.stage import copied
from freewheel.trace import Trace
from freewheel.trainer._trainer import Trainer

Balance = tuple[int, ...]
TURNS = 3  # of each cut that was tried; the fastest counts, since other work only slows down


def rebalance(
    stages: Stages,
    make: Callable[[Stages], Trainer],
    batches: Iterable[Any],
    *,
    example: Any = None,
    rounds: int = 3,
) -> Stages:
    """Cut a model again, so that its stages take equally long in training.

    `fw.split` measures layers by themselves. What a stage takes in training may differ: compiled code fuses layers, a
    method recomputes or draws tangents, a device is slower than another. So copies of the stages are trained on the
    batches, and what each takes is divided among its units in proportion to their costs. The model is cut by these new
    costs, and so on::

        round 0   cut 0 -> trained -> 3 + 5 ms -> costs of units -> cut 1
        round 1   cut 1 -> trained -> 4.3 + 3.9 ms -> costs of units -> cut 2
        …                                           until a cut comes again

    Then the cuts that were tried are trained in turn, since a computer is not equally fast at all times, and the one
    whose slowest stage is fastest is returned. The model itself is not trained.

    Args:
        stages: The stages of `fw.split`, whatever they were balanced by.
        make: Returns a trainer of the stages that it gets, as they will be trained; the runtime `simulate` measures
            best, since its stages do not disturb each other.
        batches: What a loader gives, some dozen batches; copies are trained on them twice, and the second time counts.
        example: What `fw.split` was given.
        rounds: The most cuts to train, each on a copy of the model.

    Returns:
        The stages, with the measured seconds of each in their report.

    Example:
        >>> from functools import partial
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> make = partial(fw.Trainer, method="asyncfgd", loss=F.cross_entropy, runtime="simulate",
        ...                optimizer=partial(torch.optim.SGD, lr=0.01))
        >>> batches = [(torch.randn(16, 8), torch.randint(2, (16,))) for _ in range(8)]
        >>> stages = fw.rebalance(fw.split(model, 2, by="parameters"), make, batches)
        >>> len(stages.report.seconds), stages.model is model
        (2, True)
    """
    if not isinstance(stages, Stages):
        raise TypeError(
            f"stages must be what fw.split returns, not {type(stages).__name__}: other stages have no places to cut"
        )
    whole_number("rounds", rounds, least=1)
    loader = list(batches)
    if not loader:
        raise ValueError("batches is empty: give some dozen batches to measure with")

    def measure(balance: Balance) -> list[float]:
        with torch.random.fork_rng(_gpus(stages.model)):
            cut = split(copied(stages.model), balance=balance, example=example)
            return _seconds(make(cut), loader)

    if len(stages) == 1:
        return stages
    balance, seconds = search(stages, measure, example, rounds)
    cut = split(stages.model, balance=balance, example=example)
    return Stages(cut, model=stages.model, report=replace(cut.report, costs=tuple(seconds), unit="s"))


def search(
    stages: Stages, measure: Callable[[Balance], Sequence[float]], example: Any, rounds: int
) -> tuple[Balance, Sequence[float]]:
    """The cut whose slowest stage is fastest, of those that are measured, and the seconds of its stages."""
    balance, costs = stages.report.balance, list(stages.report.unit_costs)
    measured: dict[Balance, list[Sequence[float]]] = {}
    while balance not in measured and len(measured) < rounds:
        found = measure(balance)
        measured[balance] = [found]
        costs = scaled(costs, balance, found)
        spans = recut(stages.model, balance, costs, example).spans
        balance = tuple(end - start for start, end in spans)
    for _ in range(TURNS - 1 if len(measured) > 1 else 0):
        for each, turns in measured.items():
            turns.append(measure(each))
    fastest = {each: min(turns, key=max) for each, turns in measured.items()}
    return min(fastest.items(), key=lambda item: max(item[1]))


def _seconds(trainer: Trainer, batches: Sequence[Any]) -> list[float]:
    """What each stage takes for a batch, once all is compiled and the pipeline is full."""
    if trainer.plan is None:
        raise ValueError(f"rebalance with method={trainer.method.name!r}: its workers share the whole network")
    if trainer.runtime.name == "torchrun":
        raise ValueError(
            "rebalance under torchrun: measure before, with runtime='simulate', and give balance= to split"
        )
    numbers = range(len(batches), 2 * len(batches))
    trace = trainer.fit(batches, epochs=2, trace=numbers, progress=False).trace
    assert trace is not None
    return stage_seconds(trace)


def stage_seconds(trace: Trace) -> list[float]:
    """The seconds for which each stage computes for a batch: the median over batches and replicas."""
    spent: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for event in trace.events:
        if event.is_compute:
            spent[event.stage][event.replica, event.batch] += event.seconds
    return [median(spent[stage].values()) for stage in range(trace.stages)]


def _gpus(model: nn.Module) -> list[torch.device]:
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})
