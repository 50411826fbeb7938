"""Heartbeats: every process of a run counts one up in the run's store, and watches those of the others.

A heartbeat that stops means a process that hangs or cannot be reached, and so does a store that does not answer. Both
are noticed within `timeout` seconds. The first error of any process stops all; see `Faults`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from freewheel.plan import Action
from freewheel.runtime._errors import LostError, in_words
from freewheel.runtime._faults import DONE, FAULT, Faults, heartbeat_key
from freewheel.runtime._world import START_SECONDS


class Heartbeat:
    """Threads that send this process's heartbeat and watch for those of the others.

    `titles` names each process in errors, `server` the one that serves the store. `on_fault` is called once, with the
    error that ends the run.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        titles: Mapping[int, str],
        timeout: float,
        *,
        server: str,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._store, self._rank, self._titles, self._server = store.clone(), rank, titles, server
        self._on_fault, self._timeout = on_fault, timeout
        self._interval, self._patience = min(0.25, timeout / 8), 0.7 * timeout
        self.faults = Faults(store.clone(), rank, titles)
        self.doing: Callable[[], tuple[Action, float] | None] = lambda: None  # the action under way, and its start
        self._over = threading.Event()
        self._answered = 0.0  # when the store last answered
        self._threads = [
            threading.Thread(target=target, name=f"freewheel-{name}-{rank}", daemon=True)
            for name, target in (("heartbeat", self._beat), ("watch", self._watch))
        ]

    def start(self) -> None:
        """Start; the first heartbeat is in the store when this returns."""
        self._store.set(heartbeat_key(self._rank), "0")
        self._answered = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; the others know that this process has finished, or that the run is over."""
        over = self._over.is_set()
        self._over.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._interval + 0.5)
        if not over:
            self.faults.leave()

    def _watch(self) -> None:
        """Notice a store that cannot be reached: a request to it may block for minutes."""
        while not self._over.wait(self._interval):
            if time.monotonic() - self._answered > self._patience:
                self.faults.reachable = False
                self._end(LostError(self._server, f"has not answered for {self._patience:g} s: it cannot be reached"))

    def _beat(self) -> None:
        others = [rank for rank in self._titles if rank != self._rank]
        seen: dict[int, tuple[bytes, float]] = {rank: (b"", time.monotonic()) for rank in others}
        count = 0
        while not self._over.wait(self._interval):
            count += 1
            try:
                self._store.set(heartbeat_key(self._rank), str(count))
                beats = self._beats(others)
                failed = self._store.check([FAULT])
                self._answered = time.monotonic()
            except RuntimeError:
                self.faults.reachable = False
                self._end(LostError(self._server, "has ended: its store does not answer"))
                return
            found = self.faults.first() if failed else self._silent(seen, beats) or self._hanging()
            if found is not None and not failed:
                self.faults.settle(found)
            self._end(found)

    def _end(self, error: Exception | None) -> None:
        if error is not None and not self._over.is_set():
            self._over.set()
            self._on_fault(error)

    def _beats(self, others: list[int]) -> dict[int, bytes]:
        """The heartbeat of each other process, empty where there is none yet."""
        there = [rank for rank in others if self._store.check([heartbeat_key(rank)])]
        found = self._store.multi_get([heartbeat_key(rank) for rank in there]) if there else []
        return dict.fromkeys(others, b"") | dict(zip(there, found))

    def _silent(self, seen: dict[int, tuple[bytes, float]], beats: dict[int, bytes]) -> Exception | None:
        """The loss of a process whose heartbeat has stopped, if there is one; the first may take a start-up long."""
        now = time.monotonic()
        for rank, beat in beats.items():
            before, since = seen[rank]
            patience = self._patience if beat else max(self._patience, START_SECONDS)
            if beat != before or beat == DONE:
                seen[rank] = (beat, now)
            elif now - since > patience:
                return LostError(self._titles[rank], f"has sent no heartbeat for {patience:g} s")
        return None

    def _hanging(self) -> Exception | None:
        """Whether this process's own stage is stuck."""
        doing = self.doing()
        if doing is None or time.perf_counter() - doing[1] < self._timeout:
            return None
        what = f"it has been in {in_words(doing[0])} for more than {self._timeout:g} s"
        return LostError(self._titles[self._rank], f"hangs: {what}; a longer timeout lets it take its time")
