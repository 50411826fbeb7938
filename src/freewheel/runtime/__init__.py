"""Runtimes: who runs a stage, and how messages travel; all share one interpreter."""

from freewheel.runtime._channels import SHUTDOWN_SECONDS, ClosedError
from freewheel.runtime._errors import LostError, StageError, decode_error, encode_error
from freewheel.runtime._feed import Batch, Feed, Start
from freewheel.runtime._generators import recall, remember, seeded
from freewheel.runtime._interpreter import NOT_FINITE, Snapshot
from freewheel.runtime._processes import Processes
from freewheel.runtime._ranks import (
    check_started,
    is_one_of_several,
    is_started,
    of_rank_0,
    rank_and_size,
    store_of,
)
from freewheel.runtime._run import Cut, Outcome, Run
from freewheel.runtime._runtime import Runtime
from freewheel.runtime._simulate import Simulate
from freewheel.runtime._straggler import is_slow
from freewheel.runtime._threads import Threads
from freewheel.runtime._torchrun import Torchrun
from freewheel.runtime._workers import check_guarded, diagnosed, end_workers, run_worker, worker_context, worker_name

RUNTIMES: dict[str, Runtime] = {
    "simulate": Simulate(),
    "threads": Threads(),
    "processes": Processes(),
    "torchrun": Torchrun(),
}

__all__ = [
    "NOT_FINITE",
    "RUNTIMES",
    "SHUTDOWN_SECONDS",
    "Batch",
    "ClosedError",
    "Cut",
    "Feed",
    "LostError",
    "Outcome",
    "Run",
    "Runtime",
    "Snapshot",
    "StageError",
    "Start",
    "check_guarded",
    "check_started",
    "decode_error",
    "diagnosed",
    "encode_error",
    "end_workers",
    "is_one_of_several",
    "is_slow",
    "is_started",
    "of_rank_0",
    "rank_and_size",
    "recall",
    "remember",
    "run_worker",
    "seeded",
    "store_of",
    "worker_context",
    "worker_name",
]
