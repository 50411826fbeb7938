"""Carrying out jobs: one after the other in this process, or several side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from freewheel.reproduce.jobs import Context, Job
from freewheel.runtime import end_with_caller, unblock_interrupts, worker_context


@dataclass(frozen=True)
class Task:
    """A job with a seed, and where it runs."""

    job: Job
    seed: int
    context: Context

    @property
    def title(self) -> str:
        """What it is, in one line."""
        return f"{self.job.title}, seed {self.seed}" if self.job.seeded else self.job.title


@dataclass(frozen=True)
class Outcome:
    """What came of a task: its measures, or why there are none."""

    seconds: float
    measures: Mapping[str, Any] | None = None
    error: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s" if self.measures is not None else f"no result: {self.error}"


class Watcher:
    """Hears of the progress of a run; this one shows nothing."""

    def begin(self, done: int, total: int) -> None:
        """So many of the jobs are done already."""

    def job(self, task: Task) -> None:
        """A job begins."""

    def tell(self, task: Task, text: str) -> None:
        """What the job does now."""

    def end(self, task: Task, outcome: Outcome) -> None:
        """The job has ended."""


def one_by_one(tasks: Iterable[Task], watcher: Watcher) -> Iterator[tuple[Task, Outcome]]:
    """Carry out tasks in this process."""
    for task in tasks:
        watcher.job(task)
        yield task, _carried_out(task, partial(watcher.tell, task))


def side_by_side(tasks: Iterable[Task], watcher: Watcher, processes: int) -> Iterator[tuple[Task, Outcome]]:
    """Carry out tasks in up to so many processes at a time; a task is taken when a process is free for it.

    Where this ends early, every process gets one Ctrl-C, upon which its job leaves what it needs to go on.
    """
    waiting, busy = iter(tasks), dict[Connection, _Worker]()
    try:
        while True:
            while len(busy) < processes and (task := next(waiting, None)) is not None:
                watcher.job(task)
                worker = _Worker(task)
                busy[worker.connection] = worker
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]  # pyright: ignore[reportArgumentType]
                heard = worker.hear()
                if isinstance(heard, str):
                    watcher.tell(worker.task, heard)
                else:
                    del busy[worker.connection]
                    yield worker.task, heard
    finally:
        _interrupt(busy.values())


def _carried_out(task: Task, tell: Any) -> Outcome:
    started = time.perf_counter()
    try:
        found = task.job.run(replace(task.context, tell=tell), task.seed)
    except Exception as error:  # the other jobs go on
        return Outcome(time.perf_counter() - started, error=" ".join(str(error).split()) or type(error).__name__)
    return Outcome(found.get("took", time.perf_counter() - started), found)


class _Worker:
    """A process that carries out one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._started = time.perf_counter()
        self.connection, theirs = multiprocessing.Pipe(duplex=False)
        self.process: BaseProcess = worker_context().Process(target=_work, args=(task, theirs), name="freewheel-job")
        self.process.start()
        theirs.close()

    def hear(self) -> str | Outcome:
        """What the job does now, or what came of it."""
        try:
            heard = self.connection.recv()
        except EOFError:
            self.process.join()
            heard = Outcome(
                time.perf_counter() - self._started, error=f"its process ended with exit code {self.process.exitcode}"
            )
        if isinstance(heard, Outcome):
            self.connection.close()
            self.process.join()
        return heard


def _interrupt(workers: Iterable[_Worker]) -> None:
    """Let the workers end as after Ctrl-C; another Ctrl-C meanwhile kills them."""
    try:
        for worker in workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGINT)
        for worker in workers:
            worker.process.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.kill()
        raise


def _work(task: Task, connection: Connection) -> None:
    """What a process does. It is a group of its own: Ctrl-C on a terminal reaches it through the caller, once."""
    os.setpgrp()
    end_with_caller()
    try:
        unblock_interrupts()
        connection.send(_carried_out(task, connection.send))
    except KeyboardInterrupt:
        return
