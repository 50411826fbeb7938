"""Runtimes: who runs a stage, and how messages travel. All of them share one interpreter."""

from collections.abc import Callable

from freewheel.runtime._feed import Feed
from freewheel.runtime._interpreter import NOT_FINITE, Part, StageError
from freewheel.runtime._run import Cut, Run
from freewheel.runtime._simulate import simulate
from freewheel.runtime._threads import threads

RUNTIMES: dict[str, Callable[[Run], Cut | None]] = {"simulate": simulate, "threads": threads}

__all__ = ["NOT_FINITE", "RUNTIMES", "Cut", "Feed", "Part", "Run", "StageError", "simulate", "threads"]
