"""Writing the folder of a run while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from freewheel._files import as_json, write_json, write_text, writing
from freewheel.runs._facts import facts_of
from freewheel.runs._layout import FACTS, FINAL, HISTORY, PROGRESS, TRACE, is_run
from freewheel.runs._lock import take_lock
from freewheel.runs._memory import peak_memory
from freewheel.trainer import Epoch, EpochEnd, History, Score, Trainer

FORMAT = 1
LASTING = ("started", "command", "repeat")
OFTEN = 0.5  # seconds between two notes of the progress


class RunRecorder:
    """Writes what happens in a run into its folder, for `freewheel report` and `freewheel watch`.

    It is a callback of `fit`, and holds the lock of the run as long as its context lasts. A run that ends with an error
    is recorded as `failed`, with the error.

    Args:
        folder: The folder; it is made if need be.
        trainer: The trainer; None for a folder of several runs.
        facts: More that is known of the run, by the names in `run.json`.
        goes_on: Whether the run in the folder goes on; otherwise a folder with a run is refused.

    Example:
        See `fw.Run`.
    """

    def __init__(
        self,
        folder: str | Path,
        trainer: Trainer | None = None,
        facts: Mapping[str, Any] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        self.folder = Path(folder)
        if is_run(self.folder) and not goes_on:
            raise ValueError(f"{self.folder}: there is a run already; name another folder, or remove it")
        self._facts = {**({} if trainer is None else facts_of(trainer)), **(facts or {})}
        self._devices = [] if trainer is None else trainer.devices
        self._written = 0  # epochs in the file
        self._noted = 0.0  # when the progress was written last
        self._epochs: int | None = self._facts.get("epochs")
        self._ended = False

    def __enter__(self) -> RunRecorder:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.folder)
        known = {"format": FORMAT, "name": self.folder.resolve().name, "started": _now()}
        write_json(self.folder / FACTS, {**known, **self._facts, **self._first()})
        for name in (PROGRESS, FINAL):  # of the run that goes on; its history stays until there is more
            (self.folder / name).unlink(missing_ok=True)
        self._begun = time.time()
        return self

    def _first(self) -> dict[str, Any]:
        """What stays as it was when a run began that goes on."""
        if not is_run(self.folder):
            return {}
        facts = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        return {name: facts[name] for name in LASTING if name in facts}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._ended:
                interrupted = isinstance(error, KeyboardInterrupt)
                text = None if error is None or interrupted else " ".join(f"{error}".split()) or type(error).__name__
                self._end("interrupted" if interrupted or error is None else "failed", text, {})
        finally:
            self._lock.close()

    def __call__(self, end: EpochEnd) -> None:
        """Write the line of an epoch."""
        self._write(end.history.epochs)

    def progress(self, batch: int, batches: int | None) -> None:
        """Note how many batches have begun, of how many if that is known: `fit` calls it as `on_progress`."""
        now = time.time()
        if now - self._noted < OFTEN:
            return
        self._noted = now
        found = {"batch": batch, "batches": batches, "epoch": self._written, "epochs": self._epochs, "time": now}
        write_text(self.folder / PROGRESS, as_json(found, indent=None))

    def finish(self, history: History | None = None, **figures: Any) -> None:
        """Write the history, the trace and the final figures of a run.

        Args:
            history: What `fit` has returned.
            figures: More figures, by the names in `final.json`: such as `score`, what `evaluate` has returned.
        """
        found = {name: asdict(value) if isinstance(value, Score) else value for name, value in figures.items()}
        interrupted = bool(found.pop("interrupted", False))
        if history is not None:
            interrupted = history.interrupted
            self._write(history.epochs)
            if history.trace is not None:
                history.trace.save(self.folder / TRACE)
            done = {"epochs": len(history.epochs), "batches": history.batches, "stopped": history.stopped}
            found = {**done, "images_per_second": history.images_per_second, **found}
        self._end("interrupted" if interrupted else "complete", None, found)

    def _write(self, epochs: list[Epoch]) -> None:
        """Write the lines of all epochs; usually one is new."""
        lines = [as_json(asdict(epoch), indent=None) + "\n" for epoch in epochs[self._written :]]
        path = self.folder / HISTORY
        with writing(path), path.open("a" if self._written else "w", encoding="utf-8") as file:
            file.writelines(lines)
        self._written = len(epochs)

    def _end(self, status: str, error: str | None, figures: dict[str, Any]) -> None:
        known = {"status": status, "error": error, "ended": _now(), "seconds": time.time() - self._begun}
        peaks = peak_memory(self._devices, workers=self._facts.get("runtime") == "processes")
        write_json(self.folder / FINAL, {**known, **figures, "memory": peaks})
        self._ended = True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
