"""The first error of a run, kept in the store of the run where every process can read it.

::

    failing process    error into the store → wires closed → waits until all others have read it → raises
    its peers          wire found closed    → error read from the store, acknowledged            → raise

An error is in the store before the process that failed closes a wire. So a process that finds a wire closed looks there
first, and concludes that its peer is lost only if there is no error. Every process stays until all others have read the
error, or for `ANSWER_SECONDS`, since it may be the one that serves the store.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from freewheel.runtime._channels import SHUTDOWN_SECONDS
from freewheel.runtime._errors import LostError, decode_error, encode_error

ANSWER_SECONDS = 5 * SHUTDOWN_SECONDS  # a store answers within milliseconds; on a loaded machine it may take seconds
FAULT = "fault"
DONE = b"done"  # the heartbeat of a process that has finished


class Faults:
    """One process's access to the first error of a run, over a connection of its own to the run's store."""

    def __init__(self, store: Any, rank: int, titles: Mapping[int, str]) -> None:
        self._store, self._rank, self._titles = store, rank, titles
        self._lost: str | None = None  # the process that the first error names as lost
        self.reachable = True  # whether the store answers

    def settle(self, error: BaseException) -> BaseException:
        """Publish an error unless there is an earlier one; return the error that this process should raise.

        That is the error itself, unless it says that a peer is lost: then an earlier error is the reason.
        """
        report = {"rank": self._rank, **encode_error(error)}
        own = json.dumps(report)
        first = self._ask(lambda: self._store.compare_set(FAULT, "", own))
        self._acknowledge(report if first is None else json.loads(first))
        if first is None or first == own.encode() or not isinstance(error, LostError):
            return error
        return self._decode(json.loads(first))

    def first(self) -> Exception | None:
        """Read and acknowledge the first error of any process; None if there is none or the store is unreachable."""
        text = self._ask(lambda: self._store.get(FAULT) if self._store.check([FAULT]) else None)
        if text is None:
            return None
        report = json.loads(text)
        self._acknowledge(report)
        return self._decode(report)

    def wait_until_read(self) -> None:
        """Wait until every other process that still runs has read the error."""
        pending = [rank for rank, title in self._titles.items() if rank != self._rank and title != self._lost]
        deadline = time.monotonic() + ANSWER_SECONDS
        while pending and self.reachable and time.monotonic() < deadline:
            pending = [rank for rank in pending if not self._ask(lambda rank=rank: self._has_read(rank))]
            time.sleep(0.02 if pending else 0)

    def leave(self) -> None:
        """Mark this process as finished: it reads no more errors, and needs no heartbeat."""
        self._ask(lambda: self._store.set(heartbeat_key(self._rank), DONE.decode()))

    def _has_read(self, rank: int) -> bool:
        key = heartbeat_key(rank)
        finished = self._store.check([key]) and self._store.get(key) == DONE
        return finished or self._store.check([f"{FAULT}/read/{rank}"])

    def _acknowledge(self, report: dict[str, Any]) -> None:
        self._lost = report.get("peer")
        self._ask(lambda: self._store.set(f"{FAULT}/read/{self._rank}", "yes"))

    def _decode(self, report: dict[str, Any]) -> Exception:
        title = self._titles[report["rank"]]
        place = title.partition(" (")[2]
        return decode_error(report, f" ({place}" if report["kind"] == "stage" else title)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer, or None if it does not answer in time: a dead link would block for minutes."""
        if not self.reachable:
            return None
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(question())
            except RuntimeError:  # the process that served the store has ended
                self.reachable = False

        thread = threading.Thread(target=ask, name=f"freewheel-store-{self._rank}", daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        self.reachable = self.reachable and not thread.is_alive()
        return answers[0] if answers else None


def heartbeat_key(rank: int) -> str:
    """The store's key of the heartbeat of a process."""
    return f"heartbeat/{rank}"
