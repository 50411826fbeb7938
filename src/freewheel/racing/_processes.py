"""Races between processes: weights in shared memory, a process for each worker that takes whole batches.

::

    caller     deal 0 → deal 1 → …  [all done: average, cut, evaluate]  …  → deal over
    worker 0     F0 B0 U0   F2 B2 U2  …
    worker 1     F1 B1 U1   F3 B3 U3  …

The trainer's own network is copied to the shared memory in the beginning, and back at each cut.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from freewheel._cores import intra_op_threads
from freewheel.methods import Wild
from freewheel.racing._counts import together
from freewheel.racing._field import END, Make, cut_of
from freewheel.racing._layers import layers_of
from freewheel.racing._memory import average, copy_out, shared_copy
from freewheel.racing._process_worker import Ask, Done, Failed, Order, Report, send, work
from freewheel.racing._stepper import Schedule
from freewheel.racing._turns import CALLER, Free, Step, write_steps
from freewheel.racing._wild import Parts, meets, names
from freewheel.runtime import (
    Batch,
    Cut,
    LostError,
    Outcome,
    Run,
    check_guarded,
    diagnosed,
    end_workers,
    heard,
    worker_context,
    worker_name,
)
from freewheel.stage import Stage

AHEAD = 2  # batches that a worker has been given: one that it works on, one that waits


def race_in_processes(run: Run, method: Wild, make: Make) -> Outcome:
    """Runs to the end, or to the cut at which `on_cut` asks to stop; the weights come back to this process."""
    check_guarded()
    with run.begun() as stages, intra_op_threads(run.threads):
        crew = _Crew(run, stages, method, make)
        try:
            crew.start()
            stopped_at = crew.lead()
            rest = crew.cut()
            if method.record is not None:
                write_steps(method.record, crew.steps)
            return Outcome(stopped_at, rest)
        finally:
            crew.end()


class _Crew:
    """The workers of a run, as the caller sees them."""

    def __init__(self, run: Run, stages: Sequence[Stage], method: Wild, make: Make) -> None:
        self._run, self._stages, self._form = run, stages, method.form
        modules = [stage.module for stage in stages]
        self._layers = layers_of(modules)
        Parts(self._form, len(self._layers), 0)  # refuses too many
        self._memories = [shared_copy(modules) for _ in range(self._form.groups)]
        self._names = names(self._form)
        self._rows = torch.zeros(len(self._names) * len(self._layers), dtype=torch.int64).share_memory_()
        self._schedules = [Schedule(stage) for stage in stages]
        self._turns = Free(recording=method.record is not None)
        self._given: list[set[int]] = [set() for _ in self._names]  # batches that a worker has not done yet
        self._done = 0
        self._reports: dict[int, Report] = {}
        self.steps: list[Step] = []
        context = worker_context()
        self._lines: list[Connection] = []
        self._processes: list[Any] = []
        for index, name in enumerate(self._names):
            order = Order(
                name=name,
                index=index,
                form=self._form,
                make=make,
                modules=modules,
                states=[stage.state() for stage in stages],
                seed=run.seed,
                threads=run.threads,
                batches_before=run.batches_before,
                epochs_before=run.epochs_before,
                recording=method.record is not None,
            )
            ours, theirs = context.Pipe()
            memory = self._memories[index // self._form.workers]
            arguments = (pickle.dumps(order), theirs, memory, self._rows)
            process = context.Process(target=work, args=arguments, name=worker_name(index), daemon=True)
            self._lines.append(ours)
            self._processes.append((process, theirs))

    def start(self) -> None:
        """Starts all of them."""
        for process, theirs in self._processes:
            process.start()
            theirs.close()  # so that the line ends with the worker

    def lead(self) -> Cut | None:
        """Gives batches out and sees to the cuts; returns the one at which it was asked to stop."""
        stopped_at = None
        while stopped_at is None and (batch := self._run.feed.pull()) is not None:
            self._deal(batch)
            if meets(self._form, batch):
                self._drain()
                self._turns.step(CALLER, f"drained {batch.number}")
                average(self._memories)
            if batch.cut:
                cut = self.cut()
                stopped_at = cut if self._run.on_cut(cut) else None
        self._turns.step(CALLER, "deal over")
        for line in self._lines:
            self._send(line, END)
        self._drain()
        average(self._memories)
        return stopped_at

    def cut(self) -> Cut:
        """The network as it is, with all batches done; it is copied to this process."""
        self._reports = {}
        for index, line in enumerate(self._lines):
            self._send(line, Ask(state=index == 0))
        while len(self._reports) < len(self._lines):
            self._hear()
        reports = [self._reports[index] for index in range(len(self._lines))]
        self.steps += [step for report in reports for step in report.steps]
        self.steps += self._turns.recorded or []
        if self._turns.recorded:
            self._turns.recorded.clear()
        self._bring_back(reports[0].state or [])
        counts = together([report.counts for report in reports])
        losses = sorted((item for report in reports for item in report.losses), key=lambda item: item[0])
        busy = sum(report.busy for report in reports) / len(reports)
        return cut_of(self._run, self._stages, self._layers, self._done, counts, losses, busy)

    def _bring_back(self, states: Sequence[Any]) -> None:
        """Weights and buffers, and the first worker's momentum and the like, as the trainer's own."""
        copy_out(self._memories[0], [stage.module for stage in self._stages])
        for stage, state, schedule in zip(self._stages, states, self._schedules):
            if stage.optimizer is not None:
                groups = stage.optimizer.state_dict()["param_groups"]
                stage.optimizer.load_state_dict({"state": state, "param_groups": groups})
            schedule.reach(self._done)

    def _deal(self, batch: Batch) -> None:
        first = batch.number % self._form.groups * self._form.workers
        team = range(first, first + self._form.workers)
        while min(len(self._given[index]) for index in team) >= AHEAD:
            self._hear()
        index = min(team, key=lambda i: len(self._given[i]))
        self._given[index].add(batch.number)
        self._turns.step(CALLER, f"deal {batch.number}")
        self._send(self._lines[index], batch)

    def _drain(self) -> None:
        while any(self._given):
            self._hear()

    def _send(self, line: Connection, message: Any) -> None:
        try:
            send(line, message)
        except OSError:
            raise self._lost() from None

    def _hear(self) -> None:
        """Takes a message from each worker that has sent one, waiting for the first."""
        ready = wait(self._lines, self._run.abroad.timeout)
        if not ready:
            index = next((i for i, given in enumerate(self._given) if given), 0)
            where = f"{self._names[index]} (pid {self._processes[index][0].pid})"
            raise LostError(where, f"has not answered for {self._run.abroad.timeout:g} s: it hangs")
        for line in ready:
            index = self._lines.index(line)  # pyright: ignore[reportArgumentType]
            try:
                message = pickle.loads(self._lines[index].recv_bytes())
            except (EOFError, OSError):
                raise self._lost() from None
            if isinstance(message, Failed):
                pid = self._processes[index][0].pid
                raise heard(message.error, f"{message.where.removesuffix(',')} (pid {pid})")
            if isinstance(message, Done):
                self._given[index].remove(message.number)
                self._done += 1
            else:
                self._reports[index] = message

    def _lost(self) -> Exception:
        """What is behind a line that has ended: the worker that did so first."""
        processes = [process for process, _ in self._processes]
        return diagnosed(LostError("a worker", "has ended"), processes, self._names, None)

    def end(self) -> None:
        """Ends all of them, at once where they do not by themselves."""
        for line in self._lines:
            line.close()
        end_workers([process for process, _ in self._processes])
