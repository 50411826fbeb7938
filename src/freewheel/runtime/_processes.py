"""`processes`: one process per stage on this machine; the calling process feeds them and handles the cuts.

::

    caller       pull 0 → pull 1 → …   [cut: evaluate]   …   → end → states come back
    process 0      F0      F1      B0 F2   …                     (workers end)
    process 1              F0 B0   F1 B1   …

Workers are started for each run, build their stage from a blueprint, and join through a store on the loopback
interface, which the caller serves. Whatever goes wrong, all workers have ended before the error is raised, and nothing
of them is left: shared memory has no name, and sockets have no files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from freewheel._config import RunConfig
from freewheel._malloc import keep_freed_memory
from freewheel._torchvision import packed, unpacked
from freewheel.runtime._channels import ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._generators import seeded
from freewheel.runtime._heartbeat import Heartbeat
from freewheel.runtime._lead import Lead, load_states
from freewheel.runtime._peaks import note_peaks
from freewheel.runtime._remote import encode_snapshot, remote_interpreter
from freewheel.runtime._replicas import titles
from freewheel.runtime._run import Outcome, Run
from freewheel.runtime._runtime import Runtime
from freewheel.runtime._settings import deterministic_convolutions
from freewheel.runtime._spec import RunSpec
from freewheel.runtime._wiring import RESULT, SNAPSHOT, close_all, wires_of
from freewheel.runtime._workers import (
    LOST,
    check_alive,
    check_guarded,
    diagnosed,
    end_workers,
    run_worker,
    worker_context,
    worker_name,
)
from freewheel.runtime._world import World, fresh_store, joined_store
from freewheel.stage import Blueprint


class Processes(Runtime):
    """One process per stage on this machine."""

    def check(self, config: RunConfig, blueprints: Sequence[Blueprint]) -> None:
        """Refuse what cannot be sent to another process."""
        for blueprint in blueprints[: blueprints[0].options.schedule.stages]:
            blueprint.check_picklable()

    def run(self, run: Run) -> Outcome:
        """Run to the end, or to the cut at which `on_cut` asks to stop; load the final states of the stages."""
        check_guarded()
        timeout, caller = run.config.timeout, run.size
        states = [stage.state() for stage in run.stages] * run.schedule.replicas
        arguments = [packed((*each, run.spec)) for each in zip(run.blueprints, states)]
        store, port = fresh_store(timeout)
        store.set("token", secrets.token_hex(8))
        roles = [*titles(run.schedule), "the caller"]
        context = worker_context()
        workers = [
            context.Process(target=_work, args=(each, rank, roles, port), name=worker_name(rank), daemon=True)
            for rank, each in enumerate(arguments)
        ]
        lead: Lead | None = None
        heartbeat: Heartbeat | None = None
        try:
            for worker in workers:
                worker.start()
            alive = partial(check_alive, workers)
            world = World(store, caller, roles, transport=run.config.transport, timeout=timeout, check_alive=alive)
            senders, receivers = world.join(wires_of(run.schedule, caller))
            lead = Lead(run, senders, receivers)
            heartbeat = Heartbeat(store, caller, world.titles, timeout, server=world.titles[caller], on_fault=lead.end)
            heartbeat.start()
            outcome = lead.supervise()
            load_states(run, outcome)
            return outcome
        except LostError as error:
            found = diagnosed(error, workers, roles, heartbeat and heartbeat.faults)
            raise found from found.__cause__  # the worker's traceback, where there is one
        finally:
            note_peaks(workers)  # which end once the wires are closed
            if heartbeat is not None:
                heartbeat.stop()
            if lead is not None:
                lead.release()
            end_workers(workers)


def _work(arguments: bytes, rank: int, roles: Sequence[str], port: int) -> None:
    """The main function of a worker."""
    run_worker(lambda: _train(rank, roles, port, *unpacked(arguments)))


def _train(
    rank: int, roles: Sequence[str], port: int, blueprint: Blueprint, state: dict[str, Any], spec: RunSpec
) -> int:
    """Run the stage to its end; return the exit code. An error is in the store before the wires are closed."""
    keep_freed_memory()
    config = blueprint.options.config
    torch.set_num_threads(config.threads or 1)
    spec.settings.apply()
    if blueprint.device.type == "cuda":
        torch.cuda.set_device(blueprint.device)
    stage = blueprint.build()
    stage.load(state)
    caller = len(roles) - 1
    store = joined_store(port, config.timeout)
    world = World(store, rank, roles, transport=config.transport, timeout=config.timeout, device=stage.device)
    senders, receivers = world.join(wires_of(stage.schedule, caller))
    heartbeat = Heartbeat(
        store, rank, world.titles, config.timeout, server=world.titles[caller], on_fault=lambda error: os._exit(LOST)
    )
    heartbeat.start()

    def fail(error: BaseException) -> None:
        heartbeat.faults.settle(error)
        close_all(senders, receivers)

    try:
        interpreter = remote_interpreter(stage, rank, spec, senders, receivers)
        heartbeat.doing = lambda: interpreter.doing
        stage.begin(*spec.before)
        with seeded(spec.seed), deterministic_convolutions():
            interpreter.run(fail)
        stage.end()
        last = interpreter.snapshot(stage.version, state=True)
        senders[f"{SNAPSHOT} {rank}"].put(encode_snapshot(last, last=True))
        receivers[f"{RESULT} {rank}"].get()  # until the caller closes the wires
    except (ClosedError, LostError):
        raise
    except BaseException as error:
        heartbeat.faults.settle(error)
        return 1
    finally:
        close_all(senders, receivers)
        heartbeat.stop()
    return 0
