"""`threads`: one thread a stage; the calling thread feeds them and sees to the cuts.

::

    caller     pull 0 → pull 1 → pull 2 → …  [cut: evaluate]  …  → end → join
    stage 0      F0      F1      B0 F2   …
    stage 1              F0 B0   F1 B1   …

The first error closes every channel; a stage that waits on one gives up at once, one that computes at its next action.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._run import Cut, Local, Outcome, Run

# How long the caller waits for the other stages to notice an error before it raises it.
GRACE_SECONDS = 1.5
Events = queue.SimpleQueue[Any]


def threads(run: Run) -> Outcome:
    """Runs to the end, or to the cut at which `on_cut` asks to stop."""
    events: Events = queue.SimpleQueue()
    run.complete = events.put
    with run.begun() as stages:
        local = Local(run, stages)
        workers = [stage_thread(i, events, run.threads, local.close) for i in local.interpreters]
        for worker in workers:
            worker.start()
        try:
            with intra_op_threads(run.threads):
                stopped_at, _ = attend(events, local.deliver, run.on_cut, working=len(workers))
        except BaseException:
            local.close()
            deadline = time.monotonic() + GRACE_SECONDS
            for worker in workers:
                worker.join(max(0.0, deadline - time.monotonic()))
            raise
        local.close()
        for worker in workers:  # however long it takes: what they hold is about to be read, or put back
            worker.join()
        return local.outcome(stopped_at)


def stage_thread(
    interpreter: Interpreter, events: Events, threads: int, close: Callable[[], object]
) -> threading.Thread:
    """A thread that runs a stage; it reports itself when it is done, or its error, after which all is closed."""

    def work() -> None:
        try:
            torch.set_num_threads(threads)
            interpreter.run()
            events.put(interpreter)
        except ClosedError:
            pass
        except BaseException as error:
            events.put(error)
            close()

    return threading.Thread(target=work, name=f"freewheel-stage-{interpreter.stage.index}", daemon=True)


def attend(
    events: Events, deliver: Callable[[], bool], on_cut: Callable[[Cut], bool], *, working: int
) -> tuple[Cut | None, int]:
    """Feeds the stages and answers to what they report, until all have finished, or `on_cut` asks to stop.

    Returns the cut at which it did, and how many stages are still at work.
    """
    feeding = True
    while working:
        if feeding:
            try:
                feeding = deliver()
            except ClosedError:
                feeding = False  # a stage has failed: its error is on the way
        while working and (not feeding or not events.empty()):
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Cut):
                if on_cut(event):
                    return event, working
            else:
                working -= 1
    return None, 0
