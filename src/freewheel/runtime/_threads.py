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
from typing import Any

import torch

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._run import Cut, Run

# How long the caller waits for the other stages to notice an error before it raises it.
GRACE_SECONDS = 1.5


def threads(run: Run) -> Cut | None:
    """Runs to the end; returns the cut at which `on_cut` asked to stop, if it did."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    run.complete = events.put

    def work(interpreter: Interpreter) -> None:
        try:
            torch.set_num_threads(run.threads)
            interpreter.run()
            events.put(interpreter)
        except ClosedError:
            pass
        except BaseException as error:
            events.put(error)
            run.close()

    workers = [
        threading.Thread(target=work, args=(i,), name=f"freewheel-stage-{i.stage.index}", daemon=True)
        for i in run.interpreters
    ]
    for worker in workers:
        worker.start()
    try:
        with intra_op_threads(run.threads):
            stopped_at = _attend(run, events)
    except BaseException:
        run.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        raise
    run.close()
    for worker in workers:  # however long it takes: what they hold is about to be read, or put back
        worker.join()
    return stopped_at


def _attend(run: Run, events: queue.SimpleQueue[Any]) -> Cut | None:
    """Feeds the stages and answers to what they report, until all have finished."""
    feeding, working = True, len(run.interpreters)
    while working:
        if feeding:
            try:
                feeding = run.deliver()
            except ClosedError:
                feeding = False  # a stage has failed: its error is on the way
        while working and (not feeding or not events.empty()):
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Cut):
                if run.on_cut(event):
                    return event
            else:
                working -= 1
    return None
