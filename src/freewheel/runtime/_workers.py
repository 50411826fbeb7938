"""Worker processes: starting them, finding out why one has ended, and ending them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from freewheel.runtime._channels import SHUTDOWN_SECONDS, ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._faults import ANSWER_SECONDS, Faults

LOST = 75  # the exit code of a worker whose peers have ended: the fault is elsewhere
UNGUARDED = 76  # and of one that was about to start workers of its own, while it was loading the script
NAME = "freewheel-stage-"


def worker_name(rank: int) -> str:
    """The name of a worker process."""
    return f"{NAME}{rank}"


def worker_context() -> Any:
    """The start method of workers: from a server process that has torch loaded, where the system has that.

    Ctrl-C on a terminal goes to every process on it. The server would end if it came while torch is loading, and a
    worker while it loads the script, so SIGINT is blocked in both: see `unblock_interrupts`.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker  # other systems do not have them

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["freewheel", "torch._dynamo"])  # optimizers load the latter when they are made
    resource_tracker.ensure_running()  # unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def unblock_interrupts() -> None:
    """Let a worker process hear Ctrl-C, also one that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_worker(work: Callable[[], int]) -> None:
    """Run the whole life of a worker process, and exit with the code that `work` returns.

    It exits hard: threads that still wait do so for processes that have ended. It ends with its caller, too, however
    early that is killed.
    """
    end_with_caller()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which lets the pipeline drain
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


def end_with_caller() -> None:
    """From now on this process ends when its caller does, however early or suddenly that is."""
    threading.Thread(target=_end_with_caller, name="freewheel-caller", daemon=True).start()


def _end_with_caller() -> None:
    caller = multiprocessing.parent_process()
    if caller is not None:
        caller.join()  # waits for the end of a pipe that the caller holds
        os._exit(LOST)


def check_guarded() -> None:
    """Exit a worker that is still loading the script and has come to its training; the caller explains."""
    process = multiprocessing.current_process()
    if process.name.startswith(NAME) and getattr(process, "_inheriting", False):
        os._exit(UNGUARDED)


def check_alive(workers: Sequence[Any]) -> None:
    """Raise if a worker has ended."""
    if any(worker.exitcode is not None for worker in workers):
        raise LostError("a worker", "has ended")


def diagnosed(error: LostError, workers: Sequence[Any], roles: Sequence[str], faults: Faults | None) -> Exception:
    """The cause of a lost connection: an error that a worker has reported, or the worker that died."""
    reported = faults.first() if faults is not None else None
    if reported is not None:
        return reported
    rank = _culprit(workers)
    if rank is None:
        return error
    worker = workers[rank]
    where, code = f"{roles[rank]} (rank {rank}, pid {worker.pid} on {socket.gethostname()})", worker.exitcode
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
    return LostError(where, f"ended with exit code {code}{hint if faults is None else ''}")


def _culprit(workers: Sequence[Any]) -> int | None:
    """The first worker that ended through a fault of its own; its exit code may come after those of its peers."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        codes = [worker.exitcode for worker in workers]
        dead = next((rank for rank, code in enumerate(codes) if code not in (None, 0, LOST)), None)
        running = [worker.sentinel for worker, code in zip(workers, codes) if code is None]
        if dead is not None or not running or not wait(running, max(0.0, deadline - time.monotonic())):
            return dead


def end_workers(workers: Sequence[Any]) -> None:
    """Wait for every worker to end, and kill those that do not in time."""
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for worker in workers:
        if worker.pid is None:
            continue
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.exitcode is None:
            worker.kill()
            worker.join()
