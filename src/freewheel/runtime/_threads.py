"""`threads`: one thread per stage; the calling thread feeds them and handles the cuts.

::

    caller     pull 0 → pull 1 → pull 2 → …  [cut: evaluate]  …  → end → join
    stage 0      F0      F1      B0 F2   …
    stage 1              F0 B0   F1 B1   …

The first error closes every channel. A stage that waits on one gives up at once, one that computes at its next action.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import SHUTDOWN_SECONDS, WAKE_SECONDS, ClosedError
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._peer import channel_between
from freewheel.runtime._run import Cut, LocalRun, Outcome, Run
from freewheel.runtime._runtime import Runtime


class Event(NamedTuple):
    """What the calling thread waits for: an error, a complete cut, or, with neither, a stage that has finished."""

    error: BaseException | None = None
    cut: Cut | None = None


Events = queue.SimpleQueue[Event]


class Threads(Runtime):
    """One thread per stage."""

    local = True

    def run(self, run: Run) -> Outcome:
        """Run to the end, or to the cut at which `on_cut` asks to stop."""
        events: Events = queue.SimpleQueue()
        run.on_complete = lambda cut: events.put(Event(cut=cut))
        with run.begun() as stages:
            local = LocalRun(run, stages, partial(channel_between, stages))

            def fail(error: BaseException) -> None:
                events.put(Event(error=error))
                local.close()

            workers = [stage_thread(i, events, run.threads, fail) for i in local.interpreters]
            for worker in workers:
                worker.start()
            try:
                with intra_op_threads(run.threads):
                    stopped_at, _ = supervise(events, local.deliver, run.on_cut, working=len(workers))
            except BaseException:
                local.close()
                deadline = time.monotonic() + SHUTDOWN_SECONDS
                for worker in workers:
                    worker.join(max(0.0, deadline - time.monotonic()))
                raise
            local.close()
            for worker in workers:  # without a time limit: what they hold is about to be read, or put back
                worker.join()
            return local.outcome(stopped_at)


def stage_thread(
    interpreter: Interpreter, events: Events, threads: int, on_error: Callable[[BaseException], object]
) -> threading.Thread:
    """A thread that runs a stage, and puts an event when it has finished; errors go to `on_error`.

    On a GPU it works on the stream of the thread that calls this, as the loader does.
    """
    streams = chosen_streams()

    def work() -> None:
        try:
            torch.set_num_threads(threads)
            for stream in streams:
                torch.cuda.set_stream(stream)
            interpreter.run(on_error)
            events.put(Event())
        except ClosedError:
            pass
        except BaseException as error:
            on_error(error)

    return threading.Thread(target=work, name=f"freewheel-stage-{interpreter.stage.index}", daemon=True)


def chosen_streams() -> list[torch.cuda.Stream]:
    """The streams that this thread has chosen; every thread begins with the default one of each GPU."""
    if not torch.cuda.is_initialized():
        return []
    gpus = range(torch.cuda.device_count())
    return [s for gpu in gpus if (s := torch.cuda.current_stream(gpu)) != torch.cuda.default_stream(gpu)]


def supervise(
    events: Events, deliver: Callable[[], bool], on_cut: Callable[[Cut], bool], *, working: int
) -> tuple[Cut | None, int]:
    """Feed the stages and handle their events until all have finished, or `on_cut` asks to stop.

    Returns the cut at which it did, and how many stages still run.
    """
    feeding = True
    while working:
        if feeding:
            try:
                feeding = deliver()
            except ClosedError:
                feeding = False  # a stage has failed: its error is among the events
        while working and (not feeding or not events.empty()):
            event = _next(events)
            if event.error is not None:
                raise event.error
            if event.cut is None:
                working -= 1
            elif on_cut(event.cut):
                return event.cut, working
    return None, 0


def _next(events: Events) -> Event:
    """Wait for the next event, waking now and then."""
    while True:
        with suppress(queue.Empty):
            return events.get(timeout=WAKE_SECONDS)
