"""Runtimes: who runs a stage, and how messages travel. All of them share one interpreter."""

from collections.abc import Callable

from freewheel.runtime._channels import ClosedError
from freewheel.runtime._errors import LostError, StageError, heard, told
from freewheel.runtime._feed import START, Batch, Feed, Start
from freewheel.runtime._generators import recall, remember, seeded
from freewheel.runtime._interpreter import NOT_FINITE, Part
from freewheel.runtime._mesh import device_mesh
from freewheel.runtime._processes import (
    check_guarded,
    diagnosed,
    end_workers,
    processes,
    run_worker,
    worker_context,
    worker_name,
)
from freewheel.runtime._ranks import (
    check_started,
    is_one_of_several,
    is_started,
    joined_job,
    of_rank_0,
    rank_and_size,
    store_of,
)
from freewheel.runtime._run import Abroad, Cut, Outcome, Run
from freewheel.runtime._simulate import simulate
from freewheel.runtime._straggler import is_slow
from freewheel.runtime._threads import threads
from freewheel.runtime._torchrun import torchrun
from freewheel.runtime._world import TRANSPORTS, Transport

RUNTIMES: dict[str, Callable[[Run], Outcome]] = {
    "simulate": simulate,
    "threads": threads,
    "processes": processes,
    "torchrun": torchrun,
}

__all__ = [
    "NOT_FINITE",
    "RUNTIMES",
    "START",
    "TRANSPORTS",
    "Abroad",
    "Batch",
    "ClosedError",
    "Cut",
    "Feed",
    "LostError",
    "Outcome",
    "Part",
    "Run",
    "StageError",
    "Start",
    "Transport",
    "check_guarded",
    "check_started",
    "device_mesh",
    "diagnosed",
    "end_workers",
    "heard",
    "is_one_of_several",
    "is_slow",
    "is_started",
    "joined_job",
    "of_rank_0",
    "processes",
    "rank_and_size",
    "recall",
    "remember",
    "run_worker",
    "seeded",
    "simulate",
    "store_of",
    "threads",
    "told",
    "torchrun",
    "worker_context",
    "worker_name",
]
