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
from contextlib import suppress
from datetime import timedelta
from typing import Any

from freewheel.runtime._errors import LostError, heard, told


class Pulse:
    """A thread that gives signs of life and watches for those of others.

    Args:
        store: Where they are; used by this thread alone.
        rank: This process.
        titles: What each process is called in errors, by its rank.
        server: What the process that serves the store is called in errors.
        timeout: Seconds within which a lost process is noticed.
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
        self._interval = min(0.25, timeout / 8)
        self._patience = 0.7 * timeout
        store.set_timeout(timedelta(seconds=self._patience))
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name=f"freewheel-pulse-{rank}", daemon=True)

    def start(self) -> None:
        """Begins; the first sign is there when this returns."""
        self._store.set(f"sign/{self._rank}", "0")
        self._thread.start()

    def stop(self) -> None:
        """No further signs: this process has done its part."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * self._interval + 1)
        with self._lock, suppress(RuntimeError):  # whoever held the store is gone
            self._store.set(f"sign/{self._rank}", "done")

    def report(self, error: BaseException) -> None:
        """Tells all the others; the first error counts."""
        with self._lock, suppress(RuntimeError):
            self._store.compare_set("fault", "", json.dumps({"rank": self._rank, **told(error)}))

    def fault(self) -> Exception | None:
        """The first error of any process, if there has been one."""
        with self._lock:
            if not self._store.check(["fault"]):
                return None
            report = json.loads(self._store.get("fault"))
        return told_by(report, self._titles)

    def _beat(self) -> None:
        others = [rank for rank in self._titles if rank != self._rank]
        seen: dict[int, tuple[bytes, float]] = {rank: (b"", time.monotonic()) for rank in others}
        count = 0
        while not self._over.wait(self._interval):
            try:
                error = self.fault()
                found = None if error is not None else self._silent(seen, others) or self._hanging()
                if found is not None:
                    self.report(found)
                    error = found
                count += 1
                with self._lock:
                    self._store.set(f"sign/{self._rank}", str(count))
            except RuntimeError:
                if self._over.is_set():
                    return
                error = LostError(
                    self._server, f"cannot be reached: its store has not answered for {self._patience:g} s"
                )
            if error is not None:
                self._on_fault(error)
                return

    def _hanging(self) -> Exception | None:
        """Whether this process's own stage is stuck."""
        doing = self._stuck(self._timeout)
        if doing is None:
            return None
        return LostError(self._titles[self._rank], f"hangs: {doing} for more than {self._timeout:g} s")

    def _silent(self, seen: dict[int, tuple[bytes, float]], others: list[int]) -> Exception | None:
        now = time.monotonic()
        with self._lock:
            started = [rank for rank in others if self._store.check([f"sign/{rank}"])]
            signs = self._store.multi_get([f"sign/{rank}" for rank in started]) if started else []
        for rank, sign in [*zip(started, signs), *[(r, b"") for r in others if r not in started]]:
            before, since = seen[rank]
            if sign != before or sign == b"done":
                seen[rank] = (sign, now)
            elif now - since > self._patience:
                return LostError(self._titles[rank], f"has given no sign of life for {self._patience:g} s")
        return None


def told_by(report: dict[str, Any], titles: Mapping[int, str]) -> Exception:
    """The error that one process has told all others of."""
    title = titles[report["rank"]]
    if report["kind"] == "lost":
        return LostError(*report["text"])
    where = title.partition(" (")[2]
    return heard(report, f" ({where}" if report["kind"] == "stage" else title)
