"""`processes`: one process a stage on this machine; the calling process feeds them and sees to the cuts.

::

    caller       pull 0 → pull 1 → …   [cut: evaluate]   …   → end → states come back
    process 0      F0      F1      B0 F2   …                     (workers end)
    process 1              F0 B0   F1 B1   …

Workers are started fresh, build their stage from an order, and meet through a store on the loopback interface. Whatever
goes wrong, all of them are ended before the error is raised, and nothing of them is left: memory that they share has no
name, and their sockets no files.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from freewheel._malloc import keep_freed_memory
from freewheel.checkpoint import Checkpoint, CheckpointWriter
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._generators import seeded
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._lead import Lead, load_states, stuck
from freewheel.runtime._pulse import Pulse
from freewheel.runtime._replicas import titles
from freewheel.runtime._run import Outcome, Run, input_of, target_of
from freewheel.runtime._wiring import RemoteFeed, close_all, links_of, packed, wires_of
from freewheel.runtime._world import Transport, World, fresh_store, joined_store
from freewheel.stage import Stage

LOST = 75  # the exit code of a worker whose peers are gone: the fault is elsewhere
UNGUARDED = 76  # and of one that was about to start workers of its own, while it was loading the script
GRACE_SECONDS = 2.0
NAME = "freewheel-stage-"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to do."""

    build: Callable[[], Stage]
    state: dict[str, Any]
    seed: int
    threads: int
    states: bool
    batches_before: int
    epochs_before: int
    saver: CheckpointWriter | None
    restart: Checkpoint | None
    at_cut: bool  # whether an epoch begins with the first batch
    prefetch: int
    depth: int
    transport: Transport
    timeout: float


def processes(run: Run) -> Outcome:
    """Runs to the end, or to the cut at which `on_cut` asks to stop; the stages' states come back to this process."""
    check_guarded()
    abroad, count = run.abroad, run.places
    orders = [_packed_order(run, rank) for rank in range(count)]
    store, port = fresh_store(abroad.timeout)
    store.set("token", secrets.token_hex(8))
    roles = [*titles(run.schedule), "the caller"]
    context = worker_context()
    workers = [
        context.Process(target=_work, args=(order, rank, roles, port), name=worker_name(rank), daemon=True)
        for rank, order in enumerate(orders)
    ]
    lead: Lead | None = None
    pulse: Pulse | None = None
    try:
        for worker in workers:
            worker.start()
        alive = partial(_check_alive, workers)
        world = World(store, count, roles, transport=abroad.transport, timeout=abroad.timeout, alive=alive)  # pyright: ignore
        wires = wires_of(run.schedule, count, prefetch=run.prefetch, depth=run.depth)
        senders, receivers = world.join(wires)
        lead = Lead(run, senders, receivers)
        own = world.titles[count]
        pulse = Pulse(store.clone(), count, world.titles, abroad.timeout, server=own, on_fault=lead.fail)
        pulse.start()
        outcome = lead.attend(working=count)
        load_states(run, outcome)
        return outcome
    except LostError as error:
        found = diagnosed(error, workers, roles, pulse)
        raise found from found.__cause__  # the worker's traceback, where there is one
    finally:
        if pulse is not None:
            pulse.stop()
        if lead is not None:
            lead.end()
        end_workers(workers)


def _packed_order(run: Run, rank: int) -> bytes:
    order = Order(
        build=run.abroad.orders[rank],
        state=run.stages[rank % run.schedule.stages].state(),
        seed=run.seed,
        threads=run.threads,
        states=run.states,
        batches_before=run.batches_before,
        epochs_before=run.epochs_before,
        saver=run.saver,
        restart=run.restart,
        at_cut=run.feed.is_cut(run.feed.announced - 1),
        prefetch=run.prefetch,
        depth=run.depth,
        transport=run.abroad.transport,  # pyright: ignore[reportArgumentType]
        timeout=run.abroad.timeout,
    )
    return pickle.dumps(order)


def worker_name(rank: int) -> str:
    """What the process of a worker is called."""
    return f"{NAME}{rank}"


def worker_context() -> Any:
    """How workers are started: by a server process that has torch loaded, where the system has that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["freewheel", "torch._dynamo"])  # optimizers load the latter when they are made
    return context


def _work(packed_order: bytes, rank: int, roles: Sequence[str], port: int) -> None:
    """Entry point of a worker process."""
    run_worker(partial(_work_through, packed_order, rank, roles, port))


def run_worker(work: Callable[[], int]) -> None:
    """Run the whole life of a worker process, and exit with the code that `work` returns.

    The exit skips all cleanup, since threads that are still blocked wait for processes that are gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who lets the pipeline drain
    code = 1
    try:
        code = work()
    except (ClosedError, LostError):
        code = LOST
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work_through(packed_order: bytes, rank: int, roles: Sequence[str], port: int) -> int:
    order: Order = pickle.loads(packed_order)
    keep_freed_memory()
    torch.set_num_threads(order.threads)
    stage = order.build()
    stage.load(order.state)
    caller, schedule = len(roles) - 1, stage.schedule
    store = joined_store(port, order.timeout)
    world = World(store, rank, roles, transport=order.transport, timeout=order.timeout, device=stage.device)
    wires = wires_of(schedule, caller, prefetch=order.prefetch, depth=order.depth)
    senders, receivers = world.join(wires)
    start = order.restart.manifest.batches if order.restart else 0
    interpreter = Interpreter(
        stage,
        RemoteFeed(receivers[f"announce {rank}"], start, at_cut=order.at_cut),
        inputs=receivers.get(input_of(stage.replica)),
        targets=receivers.get(target_of(stage.replica, stage.index)),
        links=links_of(stage, {**senders, **receivers}),
        on_part=lambda part: senders[f"part {rank}"].put(packed(part)),
        states=order.states,
        saver=order.saver,
        restart=order.restart,
    )
    pulse = Pulse(
        store.clone(),
        rank,
        world.titles,
        order.timeout,
        server=world.titles[caller],
        on_fault=lambda error: os._exit(LOST),
        stuck=stuck(interpreter, time.perf_counter),
    )
    pulse.start()
    try:
        stage.begin(order.batches_before, order.epochs_before)
        with seeded(order.seed):
            interpreter.run()
        stage.end()
        senders[f"part {rank}"].put(packed(interpreter.part(stage.version, state=True), last=True))
        receivers[f"told {rank}"].get()  # until the caller needs nobody any more
    except (ClosedError, LostError):
        raise
    except BaseException as error:
        pulse.report(error)
        return 1
    finally:
        close_all(senders, receivers)
        pulse.stop()
    return 0


def _check_alive(workers: Sequence[Any]) -> None:
    """Raises if a worker has ended."""
    if any(worker.exitcode is not None for worker in workers):
        raise LostError("a worker", "has ended")


def diagnosed(error: LostError, workers: Sequence[Any], roles: Sequence[str], pulse: Pulse | None) -> Exception:
    """What lies behind a lost connection: an error that a worker has told of, or the worker that ended first."""
    told = pulse.fault() if pulse is not None else None
    if told is not None:
        return told
    wait([worker.sentinel for worker in workers], GRACE_SECONDS)
    dead = {k: worker for k, worker in enumerate(workers) if worker.exitcode not in (None, 0, LOST)}
    if not dead:
        return error
    k, worker = next(iter(dead.items()))
    where, code = f"{roles[k]} (rank {k}, pid {worker.pid} on {socket.gethostname()})", worker.exitcode
    if code == -signal.SIGKILL:
        return LostError(where, "was ended by signal 9 (SIGKILL): by somebody, or by the system for lack of memory")
    if code < 0:
        return LostError(where, f"was ended by signal {-code} ({signal.Signals(-code).name})")
    if code == UNGUARDED:
        return RuntimeError(
            "a script that uses runtime='processes' must begin its work under `if __name__ == '__main__':`, since "
            "every worker loads it, and would begin the same work"
        )
    hint = "; its error is above. Workers load what they need from files, not from a prompt or a notebook"
    return LostError(where, f"ended with exit code {code}{hint if pulse is None else ''}")


def check_guarded() -> None:
    """Ends a worker that is still loading the script and has come to its training; the caller says why."""
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):
        os._exit(UNGUARDED)


def end_workers(workers: Sequence[Any]) -> None:
    """Ends every worker, at once if it does not by itself."""
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        if worker.pid is None:
            continue
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.exitcode is None:
            worker.kill()
            worker.join()
