"""The caller's side of a run of several processes: feeding, cuts, and the stages' last states."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from freewheel._cores import intra_op_threads
from freewheel.runtime._channels import ClosedError, Receiver, Sender
from freewheel.runtime._errors import LostError, in_words
from freewheel.runtime._interpreter import Interpreter, Part
from freewheel.runtime._run import Outcome, Run, cut_of
from freewheel.runtime._threads import Events, attend
from freewheel.runtime._wiring import announcement, close_all, release_all, unpacked

GRACE_SECONDS = 2.0  # for threads that have been told to end


class Lead:
    """Feeds stages elsewhere and collects what they give.

    Args:
        run: The run.
        senders: This process's ends of wires, by name.
        receivers: Likewise.
        own: Senders that stand for wires within this process, by name, where it has a stage itself.
    """

    def __init__(
        self,
        run: Run,
        senders: Mapping[str, Sender],
        receivers: Mapping[str, Receiver],
        own: Mapping[str, Sender] | None = None,
    ) -> None:
        self._run, self._senders, self._receivers = run, senders, receivers
        self._every = {**senders, **(own or {})}
        self._announce = [sender for name, sender in senders.items() if name.startswith("announce")]
        self.events: Events = queue.SimpleQueue()
        self._last: list[Part] = []
        self._listeners: list[threading.Thread] = []
        run.complete = self.events.put

    def deliver(self) -> bool:
        """Takes a batch to the stages that need it, and its number to all."""
        batch = self._run.feed.pull()
        if batch is None:
            self._announce_to_all(-1, False)
            return False
        self._announce_to_all(batch.number, batch.cut)
        self._run.hand_out(batch, self._every)
        return True

    def attend(self, working: int, own: Interpreter | None = None) -> Outcome:
        """Feeds and listens until so many stages have finished; `own` is the one in this process.

        Where `on_cut` asks to stop, no further batch is announced, and the pipeline drains.
        """
        for name, receiver in self._receivers.items():
            if name.startswith("part"):
                thread = threading.Thread(target=self._listen, args=(receiver,), name=f"freewheel-{name}", daemon=True)
                self._listeners.append(thread)
                thread.start()
        with intra_op_threads(self._run.threads):
            stopped_at, working = attend(self.events, self.deliver, self._run.on_cut, working=working)
            if stopped_at is not None:
                self._run.feed.finish()
                self._announce_to_all(-1, False)
                attend(self.events, lambda: False, lambda cut: False, working=working)
        if own is not None:
            self.finished(own.part(self._run.feed.announced, state=True))
        return Outcome(stopped_at, cut_of(self._last))

    def _announce_to_all(self, number: int, cut: bool) -> None:
        for sender in self._announce:
            sender.put(announcement(number, cut))

    def finished(self, part: Part) -> None:
        """A stage has done all its batches, and is in this state."""
        self._last.append(part)

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error."""
        self.events.put(error)
        self.close()

    def close(self) -> None:
        """Turns away everyone who waits here."""
        self._run.feed.close()
        close_all(self._senders, self._receivers)

    def end(self) -> None:
        """Closes and gives back all wires of this process, where nobody is stuck at one."""
        self.close()
        for thread in self._listeners:
            thread.join(GRACE_SECONDS)
        if not any(thread.is_alive() for thread in self._listeners):
            release_all(self._senders, self._receivers)

    def _listen(self, receiver: Receiver) -> None:
        """Takes a stage's parts, until the last."""
        try:
            while True:
                tree = receiver.get()
                if tree["last"]:
                    self.finished(unpacked(tree))
                    self.events.put(None)
                    return
                self._run.collect(unpacked(tree))
        except ClosedError:
            return
        except LostError as error:
            self.fail(error)


def stuck(interpreter: Interpreter, clock: Callable[[], float]) -> Callable[[float], str | None]:
    """Tells what a stage has been doing for longer than some seconds, or None."""

    def look(seconds: float) -> str | None:
        doing = interpreter.doing
        if doing is None or clock() - doing[1] < seconds:
            return None
        return f"it has been in {in_words(doing[0])}"

    return look


def load_states(run: Run, outcome: Outcome) -> None:
    """Puts the states that the stages ended in into this process's stages."""
    assert outcome.rest is not None
    for stage, part in zip(run.stages, outcome.rest.parts):
        if part.state is not None:
            stage.load(part.state)
