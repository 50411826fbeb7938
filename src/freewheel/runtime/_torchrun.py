"""`torchrun`: the same script in every process, started by torchrun on any hosts; each process has one stage.

::

    rank 0         reads the loader, feeds, sees to the cuts; its stage runs in a thread beside
    rank r·K + k   runs stage k of replica r, and learns the outcome from rank 0

Every process makes the same trainer and calls `fit`; only rank 0 looks at the loader, `validate` and the callbacks. In
the end every process has the whole trained network, and the same history.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import Channel, ClosedError
from freewheel.runtime._errors import LostError
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._lead import Lead, load_states, stuck
from freewheel.runtime._pulse import Pulse
from freewheel.runtime._ranks import check_same, declare, rank_and_size, store_of
from freewheel.runtime._replicas import titles
from freewheel.runtime._run import Outcome, Run, input_of, target_of
from freewheel.runtime._threads import Events, attend, stage_thread
from freewheel.runtime._wiring import RemoteFeed, close_all, links_of, packed, release_all, wires_of
from freewheel.runtime._world import World
from freewheel.stage import Stage

CALLER = 0
GRACE_SECONDS = 2.0
_runs = count()


def torchrun(run: Run) -> Outcome:
    """Runs this process's stage to the end; every process returns the same outcome."""
    rank, size = rank_and_size()
    store = store_of(f"{next(_runs)}", run.abroad.timeout)
    declare(store, rank, run)
    if rank == CALLER:
        store.set("files", run.saver.token if run.saver else "")
        store.set("token", secrets.token_hex(8))
    elif run.saver is not None:  # all write into the folder that rank 0 completes
        run.saver = replace(run.saver, token=store.get("files").decode())
    abroad = run.abroad
    world = World(
        store,
        rank,
        titles(run.schedule),
        transport=abroad.transport,  # pyright: ignore[reportArgumentType]
        timeout=abroad.timeout,
        interface=abroad.interface,
        device=run.stages[rank % run.schedule.stages].device,
    )
    wires = wires_of(run.schedule, CALLER, prefetch=run.prefetch, depth=run.depth)
    senders, receivers = world.join(wires, met=partial(check_same, store, size))
    part = _Caller(run, world, senders, receivers) if rank == CALLER else _Follower(run, world, senders, receivers)
    with _begun(run, part.stage), intra_op_threads(run.threads):
        return part.play()


@contextmanager
def _begun(run: Run, stage: Stage) -> Iterator[None]:
    """Inside, this process's stage is ready for batches."""
    stage.begin(run.batches_before, run.epochs_before)
    try:
        yield
    finally:
        stage.end()


class _Part:
    """What all processes have in common: a stage in a thread, and signs of life."""

    def __init__(self, run: Run, world: World, senders: Any, receivers: Any) -> None:
        self.run, self.world, self.senders, self.receivers = run, world, senders, receivers
        self.stage = run.stage_at(world.rank)
        self.events: Events = queue.SimpleQueue()
        self._told = False

    def interpreter(self, feed: Any, inputs: Any, targets: Any, on_part: Any) -> Interpreter:
        """The interpreter of this process's stage."""
        return Interpreter(
            self.stage,
            feed,
            inputs=inputs,
            targets=targets,
            links=links_of(self.stage, {**self.senders, **self.receivers}),
            on_part=on_part,
            states=self.run.states,
            saver=self.run.saver,
            restart=self.run.restart,
        )

    @contextmanager
    def at_work(self, interpreter: Interpreter) -> Iterator[None]:
        """Inside, the stage runs and signs of life are given; an error is told to all."""
        pulse = Pulse(
            self.world.store.clone(),
            self.world.rank,
            self.world.titles,
            self.run.abroad.timeout,
            server=f"{self.world.titles[CALLER]} or the agent of torchrun beside it",
            on_fault=self.fail,
            stuck=stuck(interpreter, time.perf_counter),
        )
        pulse.start()
        thread = stage_thread(interpreter, self.events, self.run.threads, self.close)
        thread.start()
        try:
            yield
            thread.join()
        except LostError as error:
            found = error if self._told else self._cause(error, pulse)
            raise found from found.__cause__  # the traceback in another process, where there is one
        except BaseException as error:
            pulse.report(error)
            raise
        finally:
            pulse.stop()
            self.close()
            thread.join(0.5)  # at gloo it may be stuck for good
            if not thread.is_alive():
                self.release()

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error that the pulse has noticed."""
        self._told = True
        self.events.put(error)
        self.close()

    def close(self) -> None:
        """Turns away everyone who waits here."""
        self.run.feed.close()
        close_all(self.senders, self.receivers)

    def release(self) -> None:
        """Gives back all wires of this process."""
        release_all(self.senders, self.receivers)

    @staticmethod
    def _cause(error: LostError, pulse: Pulse) -> Exception:
        """The error that made a peer end, if one is told of in a moment; else that the peer is lost."""
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            told = pulse.fault()
            if told is not None:
                return told
            time.sleep(0.05)
        pulse.report(error)
        return error


class _Caller(_Part):
    """Rank 0."""

    def play(self) -> Outcome:
        """Feeds all stages, and tells all the outcome."""
        run, schedule = self.run, self.run.schedule
        own = {input_of(0): Channel(run.prefetch)}
        if schedule.gets_targets(0):
            own[target_of(0, 0)] = Channel(run.depth)
        lead = Lead(run, self.senders, self.receivers, own)
        self.events, self._own, self._lead = lead.events, own, lead
        interpreter = self.interpreter(run.feed, own[input_of(0)], own.get(target_of(0, 0)), run.collect)
        with self.at_work(interpreter):
            outcome = lead.attend(run.places, interpreter)
            told = run.abroad.tell(outcome)
            parts = outcome.stopped_at.parts if outcome.stopped_at is not None else outcome.rest.parts  # pyright: ignore
            for name, sender in self.senders.items():
                if name.startswith("told"):
                    sender.put({"history": told, "states": [part.state for part in parts]})
                    sender.flush()
        load_states(run, outcome)
        return outcome

    def close(self) -> None:
        """Turns away everyone who waits here."""
        super().close()
        for channel in self._own.values():
            channel.close()

    def release(self) -> None:
        """Gives back all wires of this process."""
        self._lead.end()


class _Follower(_Part):
    """Any other rank."""

    def play(self) -> Outcome:
        """Runs the stage, and takes over the outcome."""
        name, receivers, feed = self.world.rank, self.receivers, self.run.feed
        interpreter = self.interpreter(
            RemoteFeed(receivers[f"announce {name}"], feed.announced, at_cut=feed.is_cut(feed.announced - 1)),
            receivers.get(input_of(self.stage.replica)),
            receivers.get(target_of(self.stage.replica, self.stage.index)),
            lambda part: self.senders[f"part {name}"].put(packed(part)),
        )
        with self.at_work(interpreter):
            attend(self.events, lambda: False, lambda cut: False, working=1)
            last = interpreter.part(self.stage.version, state=True)
            self.senders[f"part {name}"].put(packed(last, last=True))
            self.senders[f"part {name}"].flush()
            try:
                told = receivers[f"told {name}"].get()
            except ClosedError:
                raise self.events.get() from None
        for stage, state in zip(self.run.stages, told["states"]):
            stage.load(state)
        return Outcome(None, None, told["history"])
