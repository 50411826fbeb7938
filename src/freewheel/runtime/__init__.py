"""Runtimes: who runs a stage, and how messages travel. All of them share one interpreter."""

from collections.abc import Callable

from freewheel.runtime._errors import LostError, StageError
from freewheel.runtime._feed import START, Feed, Start
from freewheel.runtime._generators import recall, remember, seeded
from freewheel.runtime._interpreter import NOT_FINITE, Part
from freewheel.runtime._mesh import device_mesh
from freewheel.runtime._processes import processes
from freewheel.runtime._run import Abroad, Cut, Outcome, Run
from freewheel.runtime._simulate import simulate
from freewheel.runtime._straggler import is_slow
from freewheel.runtime._threads import threads
from freewheel.runtime._torchrun import check_started, joined_job, torchrun
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
    "Cut",
    "Feed",
    "LostError",
    "Outcome",
    "Part",
    "Run",
    "StageError",
    "Start",
    "Transport",
    "check_started",
    "device_mesh",
    "is_slow",
    "joined_job",
    "processes",
    "recall",
    "remember",
    "seeded",
    "simulate",
    "threads",
    "torchrun",
]
