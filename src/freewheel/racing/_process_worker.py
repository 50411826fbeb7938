"""A worker in a process of its own: it takes whole batches, on weights in shared memory."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel._malloc import keep_freed_memory
from freewheel.methods import Form
from freewheel.racing._counts import LayerCount, Versions
from freewheel.racing._field import Make
from freewheel.racing._layers import aliased, layers_of
from freewheel.racing._memory import Memory, in_memory, numbers
from freewheel.racing._pass import Pass
from freewheel.racing._stepper import Stepper
from freewheel.racing._turns import Free, Step
from freewheel.racing._wild import Parts
from freewheel.racing._worker import Worker
from freewheel.runtime import Batch, seeded, told


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to do."""

    name: str
    index: int
    form: Form
    make: Make
    modules: Sequence[nn.Module]
    states: list[dict[str, Any]]  # of the stages, where training begins
    seed: int  # of the run
    threads: int
    batches_before: int
    epochs_before: int
    recording: bool


class Done(NamedTuple):
    """A batch is done with."""

    number: int


class Ask(NamedTuple):
    """The caller wants to know what was counted, and perhaps the state of the optimizers."""

    state: bool


class Report(NamedTuple):
    """What a worker has counted since it was last asked."""

    counts: list[LayerCount]
    losses: list[tuple[int, Tensor, int]]
    busy: float
    steps: list[Step]
    state: list[Any] | None


class Failed(NamedTuple):
    """It cannot go on."""

    error: dict[str, Any]
    where: str


def work(packed: bytes, line: Connection, memory: Memory, rows: Tensor) -> None:
    """The whole life of a worker; it ends when its line does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who lets all finish
    code = 1
    try:
        order: Order = pickle.loads(packed)
        keep_freed_memory()
        torch.set_num_threads(order.threads)
        with seeded(order.seed):
            code = _work_through(order, line, memory, rows)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the caller is gone
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work_through(order: Order, line: Connection, memory: Memory, rows: Tensor) -> int:
    form = order.form
    leads = order.make(order.modules)
    for lead, state in zip(leads, order.states):
        lead.load(state)
    modules = in_memory(memory, order.modules)
    stages, layers = order.make(modules), layers_of(modules)
    group = order.index // form.workers
    versions = Versions(numbers(rows), len(layers), range(group * form.workers, (group + 1) * form.workers))
    turns = Free(recording=order.recording)
    stepper = Stepper(order.make(aliased(modules)), leads, layers, shared=False)
    worker = Worker(order.name, order.index, layers, turns, versions, stepper)
    passage = Pass(stages, layers, (order.batches_before, order.epochs_before))
    parts = Parts(form, len(layers), stages[0].config.seed)
    messages = _listen(line)
    try:
        while (message := messages.get()) is not None:
            if isinstance(message, Ask):
                send(line, _report(worker, message))
                continue
            turns.step(worker.name, f"take {message.number}")
            if not isinstance(message, Batch):  # the end
                continue
            worker.forward(passage, message)
            worker.backward(passage, at_once=False, part=parts.of(order.batches_before + message.number))
            turns.step(worker.name, f"done {message.number}")
            send(line, Done(message.number))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except BaseException as error:
        send(line, Failed(told(error), worker.where))
        return 1
    return 0


def _report(worker: Worker, asked: Ask) -> Report:
    assert worker.stepper is not None
    state = [stage.optimizer and stage.optimizer.state_dict()["state"] for stage in worker.stepper.stages]
    steps, worker.turns.recorded = worker.turns.recorded or [], []
    tally = worker.tally
    report = Report(tally.layers(), tally.losses, tally.busy, steps, state if asked.state else None)
    tally.clear()
    return report


def _listen(line: Connection) -> queue.SimpleQueue[Any]:
    """Takes what comes off the line at once, so that the caller never waits; None stands for its end."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                messages.put(pickle.loads(line.recv_bytes()))
            except (EOFError, OSError):
                messages.put(None)
                return

    threading.Thread(target=listen, name="freewheel-listener", daemon=True).start()
    return messages


def send(line: Connection, message: Any) -> None:
    """Sends a message with its tensors by value."""
    line.send_bytes(pickle.dumps(message))
