"""Workers as processes: the weights are in shared memory, and each worker processes whole batches.

::

    caller     deal 0 → deal 1 → …  [all done: average, cut, evaluate]  …  → deal over
    worker 0     F0 B0 U0   F2 B2 U2  …
    worker 1     F1 B1 U1   F3 B3 U3  …

The trainer's own network is copied to shared memory at the start, and back at each cut. Messages are pairs of a kind
and a value, with tensors sent by value:

    to a worker     train: a batch, or None when none is left    report: whether with the optimizer state
    from a worker   done: the batch's number    report: its answer    failed: the encoded error, and where
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from freewheel._malloc import keep_freed_memory
from freewheel._torchvision import packed, unpacked
from freewheel.racing._copy import UpdateCounts, WeightCopy
from freewheel.racing._interleaving import CALLER, Free, Interleaving, Recorded
from freewheel.racing._memory import (
    Memory,
    Stepper,
    aliased,
    as_integers,
    copy_back,
    in_memory,
    layers_of,
    shared_copy,
    stages_on,
)
from freewheel.racing._pool import Pool, WorkerGroups
from freewheel.racing._worker import BatchPass, Report, Worker
from freewheel.runtime import (
    Batch,
    LostError,
    Run,
    RunSpec,
    check_guarded,
    decode_error,
    diagnosed,
    encode_error,
    end_workers,
    note_peaks,
    run_worker,
    seeded,
    worker_context,
    worker_name,
)
from freewheel.stage import Blueprint
from freewheel.trace import tracer_for

QUEUED = 2  # batches that a worker has been sent: one in progress, one pending
HUNG_UP = (EOFError, BrokenPipeError, ConnectionResetError)  # the other end of a connection has gone


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker process needs to start."""

    index: int
    groups: WorkerGroups
    blueprints: Sequence[Blueprint]
    states: list[dict[str, Any]]  # of the stages at the start
    run: RunSpec
    recording: bool


class ProcessPool(Pool):
    """Workers as processes, as the caller sees them."""

    def __init__(self, groups: WorkerGroups, run: Run, interleaving: Interleaving) -> None:
        check_guarded()
        super().__init__(groups, run, interleaving)
        self._names = groups.names()
        self._memories = [shared_copy(self.modules) for _ in range(groups.groups)]
        self._rows = torch.zeros(len(self._names) * len(self.layers), dtype=torch.int64).share_memory_()
        self._sent: list[set[int]] = [set() for _ in self._names]  # batches that a worker has not finished
        self._answers: dict[int, Any] = {}  # to the last request for reports
        self._steps: list[Recorded] = []
        context = worker_context()
        pipes = [context.Pipe() for _ in self._names]
        self._connections: list[Connection] = [ours for ours, _ in pipes]
        self._theirs: list[Connection] = [theirs for _, theirs in pipes]
        self._processes = [self._process(context, index) for index in range(len(self._names))]

    def _process(self, context: Any, index: int) -> Any:
        spec = WorkerSpec(
            index=index,
            groups=self.groups,
            blueprints=self.run.blueprints,
            states=[stage.state() for stage in self.stages],
            run=self.run.spec,
            recording=self.interleaving.recording,
        )
        arguments = (packed(spec), self._theirs[index], self._memories[index // self.groups.workers], self._rows)
        return context.Process(target=_work, args=arguments, name=worker_name(index), daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the processes run; those that do not end by themselves are killed."""
        try:
            for process, theirs in zip(self._processes, self._theirs):
                process.start()
                theirs.close()  # so that the connection ends with the worker
            yield
        finally:
            note_peaks(self._processes)  # which end once the connections are closed
            for connection in self._connections:
                connection.close()
            end_workers(self._processes)

    def copies(self) -> Sequence[Iterable[Tensor]]:
        """The shared memory of each group."""
        return [memory.values() for memory in self._memories]

    def deal(self, batch: Batch | None) -> None:
        """Send a batch to the member of its group that has the fewest, once that has room for it."""
        if batch is None:
            self.interleaving.step(CALLER, "deal over")
            for index in range(len(self._names)):
                self._send(index, "train", None)
            return
        group = self.groups.members(batch.number % self.groups.groups)
        while min(len(self._sent[index]) for index in group) >= QUEUED:
            self._receive()
        index = min(group, key=lambda i: len(self._sent[i]))
        self._sent[index].add(batch.number)
        self.interleaving.step(CALLER, f"deal {batch.number}")
        self._send(index, "train", batch)

    def drain(self, last: Batch) -> None:
        """Wait until all batches are done."""
        self.finish()
        self.interleaving.step(CALLER, f"drained {last.number}")

    def finish(self) -> None:
        """Wait until all batches are done."""
        while any(self._sent):
            self._receive()

    def reports(self) -> list[Report]:
        """Ask all workers; the weights and the first worker's optimizer state are copied to the trainer's stages."""
        self._answers.clear()
        for index in range(len(self._names)):
            self._send(index, "report", index == 0)
        while len(self._answers) < len(self._names):
            self._receive()
        reports, steps, states = zip(*(self._answers[index] for index in range(len(self._names))))
        self._steps += [step for each in (*steps, self.interleaving.recorded()) for step in each]
        copy_back(self._memories[0], self.modules)
        for stage, state in zip(self.stages, states[0]):
            if stage.optimizer is not None:
                groups = stage.optimizer.state_dict()["param_groups"]
                stage.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return list(reports)

    def recorded(self) -> list[Recorded]:
        """The steps of the caller and of all workers."""
        return self._steps

    def _send(self, index: int, kind: str, value: Any) -> None:
        try:
            send(self._connections[index], kind, value)
        except OSError:
            raise self._lost() from None

    def _receive(self) -> None:
        """Handle a message from each worker that has sent one, blocking until the first."""
        ready = wait(self._connections, self.run.config.timeout)
        if not ready:
            index = next((i for i, sent in enumerate(self._sent) if sent), 0)
            where = f"{self._names[index]} (pid {self._processes[index].pid})"
            raise LostError(where, f"has not answered for {self.run.config.timeout:g} s: it hangs")
        handlers = {"done": self._on_done, "report": self._answers.__setitem__, "failed": self._on_failed}
        for connection in ready:
            index = self._connections.index(connection)  # pyright: ignore[reportArgumentType]
            try:
                kind, value = pickle.loads(self._connections[index].recv_bytes())
            except (EOFError, OSError):
                raise self._lost() from None
            handlers[kind](index, value)

    def _on_done(self, index: int, number: int) -> None:
        self._sent[index].remove(number)
        self._done += 1

    def _on_failed(self, index: int, failure: tuple[dict[str, Any], str]) -> None:
        error, where = failure
        raise decode_error(error, f"{where.removesuffix(',')} (pid {self._processes[index].pid})")

    def _lost(self) -> Exception:
        """The error behind a closed connection: that of the worker that ended first."""
        return diagnosed(LostError("a worker", "has ended"), self._processes, self._names, None)


def send(connection: Connection, kind: str, value: Any) -> None:
    """Send a message, with its tensors by value."""
    connection.send_bytes(pickle.dumps((kind, value)))


# ---- in the worker's process ----


def _work(arguments: bytes, connection: Connection, memory: Memory, rows: Tensor) -> None:
    """Entry point of a worker process."""
    run_worker(partial(_serve, arguments, connection, memory, rows))


def _serve(arguments: bytes, connection: Connection, memory: Memory, rows: Tensor) -> int:
    """Handle messages until the connection ends; return the exit code."""
    spec: WorkerSpec = unpacked(arguments)
    keep_freed_memory()
    torch.set_num_threads(spec.blueprints[0].options.config.threads or 1)
    spec.run.settings.apply()
    with seeded(spec.run.seed):
        worker = _ProcessWorker(spec, connection, memory, as_integers(rows))
        handlers = {"train": worker.train, "report": worker.report}
        messages = _listen(connection)
        try:
            while (message := messages.get()) is not None:
                kind, value = message
                handlers[kind](value)
            return 0
        except HUNG_UP:
            return 0
        except BaseException as error:
            with suppress(*HUNG_UP):
                send(connection, "failed", (encode_error(error), worker.worker.where))
            return 1


class _ProcessWorker:
    """A worker on weights in shared memory, and what it does for each kind of message."""

    def __init__(self, spec: WorkerSpec, connection: Connection, memory: Memory, rows: MutableSequence[int]) -> None:
        self._spec, self._connection, self._interleaving = spec, connection, Free(recording=spec.recording)
        trainers = [blueprint.build() for blueprint in spec.blueprints]
        for stage, state in zip(trainers, spec.states):
            stage.load(state)
        modules = in_memory(memory, [stage.module for stage in trainers])
        stages, self._layers = stages_on(spec.blueprints, modules), layers_of(modules)
        self._seed = stages[0].config.seed
        group = spec.index // spec.groups.workers
        changes = UpdateCounts(rows, len(self._layers), spec.groups.members(group))
        weights = WeightCopy(group, modules, self._layers, changes)
        name = spec.groups.names()[spec.index]
        self._stepper = Stepper(stages_on(spec.blueprints, aliased(modules)), trainers, self._layers, shared=False)
        self.worker = Worker(name, spec.index, self._layers, self._interleaving, weights, self._stepper)
        self.worker.tracer = tracer_for(spec.index, 0, torch.device("cpu"), spec.run.trace)
        self._batch_pass = BatchPass(stages, self._layers, spec.run.before, self._interleaving)

    def train(self, batch: Batch | None) -> None:
        """Take a batch forward and back."""
        self._interleaving.step(self.worker.name, f"take {'over' if batch is None else batch.number}")
        if batch is None:
            return
        self.worker.forward(self._batch_pass, batch)
        number = self._spec.run.before.batches + batch.number
        partition = self._spec.groups.partition(number, len(self._layers), self._seed)
        self.worker.backward(self._batch_pass, layerwise=False, partition=partition)
        self._interleaving.step(self.worker.name, f"done {batch.number}")
        send(self._connection, "done", batch.number)

    def report(self, with_state: bool) -> None:
        """Send the counts, the recorded steps and, if asked, the state of the optimizers."""
        optimizers = [stage.optimizer for stage in self._stepper.stages]
        state = [each and each.state_dict()["state"] for each in optimizers] if with_state else None
        send(self._connection, "report", (self.worker.report(), self._interleaving.recorded(), state))


def _listen(connection: Connection) -> queue.SimpleQueue[Any]:
    """Receive messages in a thread, so that the caller never blocks on a full pipe; None follows the last one."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                messages.put(pickle.loads(connection.recv_bytes()))
            except (EOFError, OSError):
                messages.put(None)
                return

    threading.Thread(target=listen, name="freewheel-listener", daemon=True).start()
    return messages
