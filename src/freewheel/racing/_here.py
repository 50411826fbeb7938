"""Races within this process: on threads, or one step at a time.

::

    caller    deal 0 → deal 1 → …  [epoch ends: drained, cut, evaluate]  …  → deal over → join
    workers     take 0 …  done 0     take 1 …

At the end of an epoch all batches are done before the next one begins, so that what is scored is the network after
exactly so many batches. The first error turns everybody away at the next step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from freewheel._cores import intra_op_threads
from freewheel.methods import Decoupled, Racing, Wild
from freewheel.racing import _decoupled, _wild
from freewheel.racing._decoupled import DecoupledField
from freewheel.racing._field import END, Field, Make
from freewheel.racing._layers import Layer, layers_of
from freewheel.racing._turns import CALLER, Drawn, Followed, Free, Turns, read_steps, write_steps
from freewheel.racing._wild import WildField
from freewheel.runtime import ClosedError, Cut, Outcome, Run
from freewheel.stage import Stage

GRACE_SECONDS = 1.5  # in which workers notice an error before it is raised


def race(run: Run, method: Racing, make: Make, *, simulated: bool) -> Outcome:
    """Runs to the end, or to the cut at which `on_cut` asks to stop."""
    with run.begun() as stages:
        turns = _turns(run, method, simulated=simulated)
        field = _field(run, stages, layers_of([stage.module for stage in stages]), turns, make, method)
        errors: list[BaseException] = []
        workers = [_thread(name, program, turns, run.threads, errors) for name, (_, program) in field.workers.items()]
        for worker in workers:
            worker.start()
        try:
            with intra_op_threads(run.threads):
                stopped_at = _lead(run, field)
            turns.leave(CALLER)
            for worker in workers:
                worker.join()
        except BaseException as error:
            turns.close()
            deadline = time.monotonic() + GRACE_SECONDS
            for worker in workers:
                worker.join(max(0.0, deadline - time.monotonic()))
            if isinstance(error, ClosedError) and errors:
                raise errors[0] from errors[0].__cause__
            raise
        if errors:  # after the last batch was given out
            raise errors[0]
        field.finish()
        if method.record is not None:
            write_steps(method.record, turns.recorded or [])
        return Outcome(stopped_at, field.cut())


def _lead(run: Run, field: Field) -> Cut | None:
    """Gives batches out and sees to the cuts; returns the one at which it was asked to stop."""
    while (batch := run.feed.pull()) is not None:
        field.deal(batch)
        if field.meets(batch):
            field.drain(batch)
        if batch.cut:
            cut = field.cut()
            if run.on_cut(cut):
                field.deal(END)
                return cut
    field.deal(END)
    return None


def _turns(run: Run, method: Racing, *, simulated: bool) -> Turns:
    recording = method.record is not None
    if not simulated:
        return Free(recording=recording)
    workers = [*names(method), CALLER]
    if method.replay is not None:
        return Followed(workers, read_steps(method.replay), recording=recording)
    return Drawn(workers, run.seed, recording=recording)


def names(method: Racing) -> list[str]:
    """Those who race."""
    if isinstance(method, Decoupled):
        return _decoupled.names(method)
    assert isinstance(method, Wild)
    return _wild.names(method.form)


def _field(run: Run, stages: Sequence[Stage], layers: list[Layer], turns: Turns, make: Make, method: Racing) -> Field:
    if isinstance(method, Decoupled):
        return DecoupledField(run, stages, layers, turns, make, method)
    assert isinstance(method, Wild)
    return WildField(run, stages, layers, turns, make, method)


def _thread(
    name: str, program: Callable[[], None], turns: Turns, threads: int, errors: list[BaseException]
) -> threading.Thread:
    """A thread that does a worker's work; its error, if there is one, turns all the others away."""

    def work() -> None:
        try:
            torch.set_num_threads(threads)
            program()
            turns.leave(name)
        except ClosedError:
            pass
        except BaseException as error:
            errors.append(error)
            turns.close()

    return threading.Thread(target=work, name=f"freewheel-{name.replace(' ', '-')}", daemon=True)
