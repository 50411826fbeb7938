"""Signs of life: every process of a run gives one now and then, and looks at the others'.

The signs are numbers in the run's store that go on counting. One that stands still is taken for a process that hangs or
cannot be reached, and so is a store that does not answer, all within `timeout` seconds. The first error of any process
is in the store too, so that all stop with it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from freewheel.runtime._errors import LostError, heard, told


class Pulse:
    """A thread that gives signs of life and watches for those of others.

    Args:
        store: Where they are; used by this thread alone.
        rank: This process.
        titles: What each process is called in errors, by its rank.
        timeout: Seconds within which a lost process is noticed.
        server: What the process that serves the store is called in errors.
        on_fault: Called once, with the error that ends the run.
        stuck: Tells what this process has been doing for longer than so many seconds, or None.
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
        stuck: Callable[[float], str | None] = lambda seconds: None,
    ) -> None:
        self._store, self._rank, self._titles, self._server = store, rank, titles, server
        self._on_fault, self._stuck, self._timeout = on_fault, stuck, timeout
        self._interval, self._patience = min(0.25, timeout / 8), 0.7 * timeout
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._answered = 0.0  # when the store last did
        self._thread = threading.Thread(target=self._beat, name=f"freewheel-pulse-{rank}", daemon=True)

    def start(self) -> None:
        """Begins; the first sign is there when this returns."""
        self._store.set(f"sign/{self._rank}", "0")
        self._answered = time.monotonic()
        self._thread.start()
        threading.Thread(target=self._watch, name=f"freewheel-watch-{self._rank}", daemon=True).start()

    def stop(self) -> None:
        """No further signs: this process has done its part."""
        if self._over.is_set():  # all know already that the run is over, or cannot be told
            return
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._interval + 0.5)
        self._ask(lambda: self._store.set(f"sign/{self._rank}", "done"))

    def report(self, error: BaseException) -> None:
        """Tells all the others, if the store can be reached; the first error counts."""
        text = json.dumps({"rank": self._rank, **told(error)})
        self._ask(lambda: self._store.compare_set("fault", "", text))

    def fault(self) -> Exception | None:
        """The first error of any process, if there has been one and the store can be reached."""
        report = self._ask(lambda: self._store.get("fault") if self._store.check(["fault"]) else None)
        return None if report is None else _told_by(json.loads(report), self._titles)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer; None from one that is gone, or that another question is still waiting for."""
        if not self._lock.acquire(timeout=1.0):
            return None
        try:
            return question()
        except RuntimeError:
            return None
        finally:
            self._lock.release()

    def _watch(self) -> None:
        """A store that cannot be reached any more may keep a question waiting for minutes: that is noticed here."""
        while not self._over.wait(self._interval):
            if time.monotonic() - self._answered > self._patience:
                self._end(LostError(self._server, f"has not answered for {self._patience:g} s: it cannot be reached"))

    def _beat(self) -> None:
        others = [rank for rank in self._titles if rank != self._rank]
        seen: dict[int, tuple[bytes, float]] = {rank: (b"", time.monotonic()) for rank in others}
        count = 0
        while not self._over.wait(self._interval):
            count += 1
            try:
                with self._lock:
                    self._store.set(f"sign/{self._rank}", str(count))
                    signs = self._signs(others)
                self._answered = time.monotonic()
            except RuntimeError:
                self._end(LostError(self._server, "has ended: its store does not answer"))
                return
            error = self.fault()
            found = None if error is not None else self._silent(seen, signs) or self._hanging()
            if found is not None:
                self.report(found)
            if error or found:
                self._end(error or found)

    def _end(self, error: Exception | None) -> None:
        if error is not None and not self._over.is_set():
            self._over.set()
            self._on_fault(error)

    def _signs(self, others: list[int]) -> dict[int, bytes]:
        """The sign of each other process, empty where there is none yet."""
        there = [rank for rank in others if self._store.check([f"sign/{rank}"])]
        found = self._store.multi_get([f"sign/{rank}" for rank in there]) if there else []
        return dict.fromkeys(others, b"") | dict(zip(there, found))

    def _silent(self, seen: dict[int, tuple[bytes, float]], signs: dict[int, bytes]) -> Exception | None:
        """The loss of a process whose sign stands still, if there is one."""
        now = time.monotonic()
        for rank, sign in signs.items():
            before, since = seen[rank]
            if sign != before or sign == b"done":
                seen[rank] = (sign, now)
            elif now - since > self._patience:
                return LostError(self._titles[rank], f"has given no sign of life for {self._patience:g} s")
        return None

    def _hanging(self) -> Exception | None:
        """Whether this process's own stage is stuck."""
        doing = self._stuck(self._timeout)
        if doing is None:
            return None
        return LostError(
            self._titles[self._rank],
            f"hangs: {doing} for more than {self._timeout:g} s; a longer timeout lets it take its time",
        )


def _told_by(report: dict[str, Any], titles: Mapping[int, str]) -> Exception:
    """The error that one process has told all others of."""
    title = titles[report["rank"]]
    if report["kind"] == "lost":
        return LostError(*report["text"])
    where = title.partition(" (")[2]
    return heard(report, f" ({where}" if report["kind"] == "stage" else title)
