"""`torchrun`: the same script in every process, started by torchrun on any hosts; each process has one stage.

::

    rank 0         reads the loader, feeds, handles the cuts; its stage runs in another thread
    rank r·K + k   runs stage k of replica r, and receives the result from rank 0

Every process makes the same trainer and calls `fit`; only rank 0 uses the loader, `validate` and the callbacks. In the
end every process has the whole trained network, and the same history.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from freewheel._config import RunConfig
from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import SHUTDOWN_SECONDS, ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._heartbeat import Heartbeat
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._lead import Lead, load_states
from freewheel.runtime._ranks import (
    check_same,
    check_started,
    declare,
    joined_job,
    rank_and_size,
    shared_store,
    store_of,
)
from freewheel.runtime._remote import encode_snapshot, remote_interpreter
from freewheel.runtime._replicas import titles
from freewheel.runtime._run import Outcome, Run
from freewheel.runtime._runtime import Runtime
from freewheel.runtime._threads import Event, Events, stage_thread, supervise
from freewheel.runtime._wiring import RESULT, SNAPSHOT, close_all, release_all, wires_of
from freewheel.runtime._world import World, prefixed, start_timeout
from freewheel.stage import Blueprint, Stage

CALLER = 0
_runs = count()


class Torchrun(Runtime):
    """The processes that torchrun has started, on any hosts; each has one stage."""

    def check(self, config: RunConfig, blueprints: Sequence[Blueprint]) -> None:
        """Refuse another number of processes than there are stages."""
        check_started(blueprints[0].options.schedule.stages, config.replicas)

    @property
    def leads(self) -> bool:
        """Rank 0 speaks for all."""
        return rank_and_size()[0] == CALLER

    def join_job(self, name: str) -> tuple[str, bool]:
        """All processes of a job save one run."""
        return joined_job(name)

    def mesh(self, config: RunConfig, stages: int) -> DeviceMesh:
        """The mesh of all ranks, on the default process group; a gloo group is made where there is none.

        All processes must call it. Runs do not use it: their messages travel on wires.
        """
        if not dist.is_initialized():
            rank, size = rank_and_size()
            store = prefixed("mesh", shared_store(config.timeout))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        return init_device_mesh("cpu", (config.replicas, stages), mesh_dim_names=("replica", "stage"))

    def run(self, run: Run) -> Outcome:
        """Run this process's stage to the end; every process returns the same outcome."""
        rank, size = rank_and_size()
        config = run.config
        store = store_of(f"{next(_runs)}", start_timeout(config.timeout))
        declare(store, rank, run)
        writer = run.spec.writer
        if rank == CALLER:
            store.set("files", writer.token if writer else "")
            store.set("token", secrets.token_hex(8))
        elif writer is not None:  # all write into the folder that rank 0 completes
            run.spec = replace(run.spec, writer=replace(writer, token=store.get("files").decode()))
        world = World(
            store,
            rank,
            titles(run.schedule),
            transport=config.transport,
            timeout=config.timeout,
            interface=config.interface,
            device=run.stages[rank % run.schedule.stages].device,
        )
        senders, receivers = world.join(wires_of(run.schedule, CALLER), check=partial(check_same, store, size))
        kind = _Caller if rank == CALLER else _Follower
        with intra_op_threads(run.threads):
            return kind(run, world, senders, receivers).run_stage()


class _Rank:
    """What all ranks have in common: a stage in a thread, a heartbeat, and one error that ends the run."""

    def __init__(self, run: Run, world: World, senders: Any, receivers: Any) -> None:
        self.run, self.world, self.senders, self.receivers = run, world, senders, receivers
        self.events: Events = queue.SimpleQueue()
        self.release: Callable[[], None] = lambda: release_all(senders, receivers)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(
            world.store,
            world.rank,
            world.titles,
            run.config.timeout,
            server=f"{world.titles[CALLER]} or the agent of torchrun beside it",
            on_fault=self.end,
        )

    @contextmanager
    def running(self) -> Iterator[Stage]:
        """A context in which this process's stage may run; raises the first error of any rank.

        An error is in the store before this process closes its wires, and this process leaves only when all others have
        read it.
        """
        stage: Stage | None = None
        self._heartbeat.start()
        try:
            stage = self.run.stage_at(self.world.rank)
            stage.begin(*self.run.spec.before)
            yield stage
            for thread in self._threads:
                thread.join()
        except (ClosedError, LostError) as error:
            self.fail(error)
            assert self._error is not None
            raise self._error from self._error.__cause__  # the traceback in another process, where there is one
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._heartbeat.stop()
            self.close()
            if self._error is not None:
                self._heartbeat.faults.wait_until_read()
            for thread in self._threads:
                thread.join(SHUTDOWN_SECONDS)  # at gloo it may be stuck for good
            if not any(thread.is_alive() for thread in self._threads):
                self.release()
            if stage is not None:
                stage.end()

    def start(self, interpreter: Interpreter) -> None:
        """Run the stage in a thread."""
        self._heartbeat.doing = lambda: interpreter.doing
        self._threads.append(stage_thread(interpreter, self.events, self.run.threads, self.fail))
        self._threads[0].start()

    def fail(self, error: BaseException) -> None:
        """End the run with an error of this process; all others learn of it first."""
        if self._error is None:
            self.end(self._heartbeat.faults.settle(error))

    def end(self, error: BaseException) -> None:
        """End the run with an error that is known to all; the first one counts."""
        with self._lock:
            if self._error is None:
                self._error = error
                self.events.put(Event(error=error))
        self.close()

    def close(self) -> None:
        """Stop every thread that waits in this process."""
        self.run.feed.close()
        close_all(self.senders, self.receivers)


class _Caller(_Rank):
    """Rank 0."""

    def __init__(self, run: Run, world: World, senders: Any, receivers: Any) -> None:
        super().__init__(run, world, senders, receivers)
        self._lead = Lead(run, senders, receivers, on_lost=self.fail)
        self.events, self.release = self._lead.events, self._lead.release

    def run_stage(self) -> Outcome:
        """Feed all stages, and send the result to all."""
        run = self.run
        with self.running() as stage:
            interpreter = Interpreter(stage, run.feed, {**self.senders, **self.receivers}, run.spec, run.collect)
            self.start(interpreter)
            outcome = self._lead.supervise(interpreter)
            cut = outcome.stopped_at or outcome.rest
            assert cut is not None
            history, states = run.encode_history(outcome), [snapshot.state for snapshot in cut.snapshots]
            for name, sender in self.senders.items():
                if name.startswith(RESULT):
                    sender.put({"history": history, "states": states})
                    sender.flush()
        load_states(run, outcome)
        return outcome


class _Follower(_Rank):
    """Any other rank."""

    def run_stage(self) -> Outcome:
        """Run the stage, and load the result."""
        rank = self.world.rank
        snapshots = self.senders[f"{SNAPSHOT} {rank}"]
        with self.running() as stage:
            interpreter = remote_interpreter(stage, rank, self.run.spec, self.senders, self.receivers)
            self.start(interpreter)
            supervise(self.events, lambda: False, lambda cut: False, working=1)
            snapshots.put(encode_snapshot(interpreter.snapshot(stage.version, state=True), last=True))
            snapshots.flush()
            result = self.receivers[f"{RESULT} {rank}"].get()
        for own, state in zip(self.run.stages, result["states"]):
            own.load(state)
        return Outcome(None, None, result["history"])
