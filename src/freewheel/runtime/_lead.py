"""The calling process of a run with several processes: feeding, cuts, and the final states of the stages."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import SHUTDOWN_SECONDS, ClosedError, Receiver, Sender
from freewheel.runtime._cut import Snapshot
from freewheel.runtime._errors import LostError
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._remote import announcement, decode_snapshot
from freewheel.runtime._run import Outcome, Run, cut_of
from freewheel.runtime._threads import Event, Events, supervise
from freewheel.runtime._wiring import ANNOUNCE, SNAPSHOT, close_all, release_all


class Lead:
    """Feeds all stages and collects the snapshots of those in other processes.

    `on_lost` is called when a wire is found closed; it ends the run by default.
    """

    def __init__(
        self,
        run: Run,
        senders: Mapping[str, Sender],
        receivers: Mapping[str, Receiver],
        on_lost: Callable[[LostError], None] | None = None,
    ) -> None:
        self._run, self._senders, self._receivers = run, senders, receivers
        self._on_lost = on_lost or self.end
        self._announce = [sender for name, sender in senders.items() if name.startswith(ANNOUNCE)]
        self.events: Events = queue.SimpleQueue()
        self._last: list[Snapshot] = []
        self._listeners: list[threading.Thread] = []
        run.on_complete = lambda cut: self.events.put(Event(cut=cut))

    def deliver(self) -> bool:
        """Send a batch to the stages that need it, and its number to all."""
        batch = self._run.feed.pull()
        if batch is None:
            self._announce_to_all(-1, False)
            return False
        self._announce_to_all(batch.number, batch.cut)
        self._run.distribute(batch, self._senders)
        return True

    def supervise(self, own: Interpreter | None = None) -> Outcome:
        """Feed and listen until all stages have finished; `own` is the one in this process.

        Where `on_cut` asks to stop, no further batch is announced, and the pipeline drains.
        """
        for name, receiver in self._receivers.items():
            if name.startswith(SNAPSHOT):
                thread = threading.Thread(target=self._listen, args=(receiver,), name=f"freewheel-{name}", daemon=True)
                self._listeners.append(thread)
                thread.start()
        with intra_op_threads(self._run.threads):
            stopped_at, working = supervise(self.events, self.deliver, self._run.on_cut, working=self._run.size)
            if stopped_at is not None:
                self._run.feed.finish()
                self._announce_to_all(-1, False)
                supervise(self.events, lambda: False, lambda cut: False, working=working)
        if own is not None:
            self._last.append(own.snapshot(self._run.feed.announced, state=True))
        return Outcome(stopped_at, cut_of(self._last))

    def _announce_to_all(self, number: int, cut: bool) -> None:
        for sender in self._announce:
            sender.put(announcement(number, cut))

    def end(self, error: BaseException) -> None:
        """End the run with an error."""
        self.events.put(Event(error=error))
        self.close()

    def close(self) -> None:
        """Stop every thread that waits in this process."""
        self._run.feed.close()
        close_all(self._senders, self._receivers)

    def release(self) -> None:
        """Close and release all wires of this process, unless a thread is stuck at one."""
        self.close()
        for thread in self._listeners:
            thread.join(SHUTDOWN_SECONDS)
        if not any(thread.is_alive() for thread in self._listeners):
            release_all(self._senders, self._receivers)

    def _listen(self, receiver: Receiver) -> None:
        """Receive a stage's snapshots, until the last."""
        try:
            while True:
                message = receiver.get()
                if message["last"]:
                    self._last.append(decode_snapshot(message))
                    self.events.put(Event())
                    return
                self._run.collect(decode_snapshot(message))
        except ClosedError:
            return
        except LostError as error:
            self._on_lost(error)


def load_states(run: Run, outcome: Outcome) -> None:
    """Load the final states of the stages into this process's stages."""
    assert outcome.rest is not None
    for stage, snapshot in zip(run.stages, outcome.rest.snapshots):
        if snapshot.state is not None:
            stage.load(snapshot.state)
