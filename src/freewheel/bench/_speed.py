"""`freewheel bench speed`: one network with one cut, trained in several ways that take turns.

Every contender trains the same ResNet-20-shaped network on the same batches with the same optimizer, in two stages cut
at the same place, each stage with one intra-op thread. They take turns, and the medians over the turns are compared,
so that a noisy machine affects all of them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from freewheel._cores import cores
from freewheel.bench import _contenders as contenders
from freewheel.bench._machine import machine
from freewheel.bench._network import SHAPE, Cut, network
from freewheel.bench._pipelining import pipelining_runs
from freewheel.bench._team import Team
from freewheel.split import split

WARM_UP = 3


def speed(
    *,
    batch_sizes: Sequence[int] = (64, 4),
    repeats: int = 5,
    seconds: float = 0.8,
    log: Callable[[str], Any] = print,
) -> dict[str, dict[str, Any]]:
    """Measure all contenders for each batch size.

    Args:
        batch_sizes: The batch sizes.
        repeats: Turns of each contender.
        seconds: The length of a turn on one core, roughly.
        log: Called with a line of progress.

    Returns:
        For each batch size its `rows` (one per contender: name, kind, median seconds per step, images/s, the seconds of
        each turn) and its `ratios`: the speed of the best asynchronous run on threads relative to Freewheel's
        sequential run (`sequential`), to plain PyTorch on all cores (`bp_all_cores`) and on its best number of cores
        (`bp_best`), and to the best of torch.distributed.pipelining (`torch_pipelining`). `processes` is the speed of a
        method in processes relative to threads. `compiled` is the speed of compiled stages, on the better of the two,
        relative to the same stages one at a time (`sequential`) and to compiled PyTorch (`bp_all_cores`).
        `bookkeeping` is the share of a sequential step that is spent on running the plan rather than on the network,
        `tracing` by how much a trace lengthens a step on threads and in processes.
    """
    teams = [
        Team("freewheel", contenders.freewheel_runs),
        Team("PyTorch", contenders.pytorch_runs),
        Team("freewheel, compiled", contenders.compiled_freewheel_runs),
        Team("PyTorch, compiled", contenders.compiled_pytorch_runs),
        Team("torch pipelining", pipelining_runs, ranks=2),
    ]
    return run_teams(teams, batch_sizes, repeats, seconds, log, _compare)


def run_teams(
    teams: Sequence[Team],
    batch_sizes: Sequence[int],
    repeats: int,
    seconds: float,
    log: Callable[[str], Any],
    compare: Callable[[list[dict[str, Any]]], dict[str, Any]],
    *,
    by: str = "time",
) -> dict[str, dict[str, Any]]:
    """Let the contenders take turns at each batch size, and compare their rows; ends the teams."""
    out = {}
    with ExitStack() as stack:
        for team in teams:
            stack.callback(team.stop)
        for size in batch_sizes:
            report = split(network(), 2, example=torch.randn(size, *SHAPE), by=by, threads=1).report
            steps = max(10, round(seconds / sum(report.costs)))
            times = take_turns(teams, size, report.balance, steps, repeats, log)
            rows = [_row(kind, name, spent, size) for (kind, name), spent in times.items()]
            facts = {"cut": report.names[1][0], "steps": steps, "machine": machine()}
            out[str(size)] = {"rows": rows, **compare(rows), **facts}
    return out


def _compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "ratios": _ratios(rows),
        "processes": _processes(rows),
        "compiled": _compiled(rows),
        "bookkeeping": _bookkeeping(rows),
        "tracing": _tracing(rows),
    }


def take_turns(
    teams: Sequence[Team], batch_size: int, cut: Cut, steps: int, repeats: int, log: Callable[[str], Any]
) -> dict[tuple[str, str], list[float]]:
    """The seconds per step of each contender in each turn, after a warm-up."""
    pairs = [(team, name) for team in teams for name in team.prepare(batch_size, cut, steps)]
    for team, name in pairs:
        team.turn(name, WARM_UP)
    times: dict[tuple[str, str], list[float]] = {(team.kind, name): [] for team, name in pairs}
    for repeat in range(repeats):
        for team, name in pairs:
            times[team.kind, name].append(team.turn(name, steps) / steps)
        log(f"batch size {batch_size}: turn {repeat + 1} of {repeats}, {len(pairs)} contenders, {steps} steps each")
    return times


def _row(kind: str, name: str, times: list[float], batch_size: int) -> dict[str, Any]:
    middle = statistics.median(times)
    return {
        "name": f"{kind}: {name}",
        "kind": kind,
        "seconds": middle,
        "images_per_second": batch_size / middle,
        "turns": times,
    }


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The speed of the best asynchronous run relative to the best of each other kind."""

    def best(*names: str) -> float:
        return min(row["seconds"] for row in rows if row["name"].startswith(names))

    first = contenders.ASYNCHRONOUS[0]
    ours = min(row["seconds"] for row in rows if row["kind"] == "freewheel" and row["name"].endswith(", threads"))
    return {
        "sequential": best(f"freewheel: {first}, simulate") / ours,
        "bp_all_cores": best(f"PyTorch: {cores()} core") / ours,
        "bp_best": best("PyTorch: ") / ours,
        "torch_pipelining": best("torch pipelining: ") / ours,
    }


def _processes(rows: list[dict[str, Any]]) -> float:
    """The speed of the first asynchronous method in processes relative to threads."""
    took = {row["name"]: row["seconds"] for row in rows}
    first = contenders.ASYNCHRONOUS[0]
    return took[f"freewheel: {first}, threads"] / took[f"freewheel: {first}, processes"]


def _compiled(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The speed of compiled stages, on threads or in processes, relative to other compiled runs."""
    took, first = {row["name"]: row["seconds"] for row in rows}, contenders.ASYNCHRONOUS[0]
    ours = min(took[f"freewheel, compiled: {first}, {runtime}"] for runtime in ("threads", "processes"))
    plain = min(took[name] for name in took if name.startswith(f"PyTorch, compiled: {cores()} core"))
    return {"sequential": took[f"freewheel, compiled: {first}, simulate"] / ours, "bp_all_cores": plain / ours}


def _bookkeeping(rows: list[dict[str, Any]]) -> float:
    """The share of a sequential step that is spent on running the plan, compared with a hand-written loop.

    It is small compared with the noise, so it is computed turn by turn, in which the two are neighbours.
    """
    turns = {row["name"]: row["turns"] for row in rows}
    pairs = zip(turns[f"freewheel: {contenders.BY_HAND}"], turns["freewheel: bp, simulate"])
    return statistics.median(1 - by_hand / by_plan for by_hand, by_plan in pairs)


def _tracing(rows: list[dict[str, Any]]) -> dict[str, float]:
    """By how much of itself a trace lengthens a step: turn by turn, in which the two are neighbours."""
    turns = {row["name"]: row["turns"] for row in rows}
    out = {}
    for runtime in contenders.TRACED:
        name = f"freewheel: {contenders.ASYNCHRONOUS[0]}, {runtime}"
        pairs = zip(turns[name], turns[f"{name}, traced"])
        out[runtime] = statistics.median(traced / plain - 1 for plain, traced in pairs)
    return out
