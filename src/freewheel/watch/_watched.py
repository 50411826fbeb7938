"""The data of runs, made again from their files when these have changed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from freewheel.report import no_data, report_data
from freewheel.runs import Run, Stamp, check_folder, default_parent, each_once, is_run, newest_run, stamp_of

REST = 10.0  # times as long as a look has taken, the files are left alone after it


@dataclass(frozen=True)
class View:
    """What is known of the watched runs at a moment.

    Args:
        data: What `report_data` has found; `note` in it is empty, or says what is waited for or cannot be read.
    """

    data: dict[str, Any]

    @property
    def note(self) -> str:
        """What is waited for, or cannot be read; empty if all runs are there."""
        return self.data["note"]

    @property
    def status(self) -> str:
        """How it goes: the status of each of the runs, without repeats."""
        return ", ".join(dict.fromkeys(each["status"]["name"] for each in (self.data["groups"] or self.data["runs"])))

    @property
    def goes_on(self) -> bool:
        """Whether more is to come: a run goes on, or has not begun."""
        running = (each["status"]["name"] == "running" for each in (*self.data["runs"], *self.data["groups"]))
        return bool(self.note) or any(running)

    @cached_property
    def text(self) -> str:
        """The data as JSON."""
        return json.dumps(self.data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    @cached_property
    def version(self) -> str:
        """What differs between two views that differ."""
        return sha256(self.text.encode()).hexdigest()[:16]


class Watched:
    """Runs that are watched; those that have not begun are waited for.

    Args:
        folders: Their folders. Without any it is the newest run in the folder of runs; when that has ended, a newer one
            once it begins.
        rest: How long the files are left alone after a look at them: so many times as long as the look has taken.

    Example:
        >>> import tempfile
        >>> watched = Watched([Path(tempfile.mkdtemp()) / "first"])
        >>> watched.look().data["runs"], watched.look() is watched.look()
        ([], True)
    """

    def __init__(self, folders: Sequence[Path] = (), *, rest: float = REST) -> None:
        self._given = each_once(folders)
        for folder in self._given:
            check_folder(folder)
        self._newest: Path | None = None
        self._rest, self._until = rest, 0.0
        self._lock = Lock()
        self._stamp: Stamp | None = None
        self._view = View({**no_data(self._title()), "note": ""})

    @property
    def name(self) -> str:
        """The folders that are watched, in words."""
        folders = self._folders() or [default_parent()]
        return ", ".join(map(str, folders))

    def look(self) -> View:
        """What is known now; the last view as long as nothing has changed."""
        with self._lock:
            if time.monotonic() < self._until:
                return self._view
            self._follow()
            stamp = (*self._folders(), *map(stamp_of, self._folders()))
            if stamp != self._stamp:
                begun = time.monotonic()
                self._view, self._stamp = View(self._data()), stamp
                ended = time.monotonic()
                self._until = ended + self._rest * (ended - begun)
            return self._view

    def _folders(self) -> list[Path]:
        return self._given or ([] if self._newest is None else [self._newest])

    def _title(self) -> str:
        return ", ".join(folder.name for folder in self._folders()) or "No run yet"

    def _follow(self) -> None:
        """Go on to the newest run, unless one is named or the last one goes on."""
        if self._given or (self._newest is not None and is_run(self._newest) and self._view.goes_on):
            return
        try:
            self._newest = newest_run()
        except FileNotFoundError:
            self._newest = None

    def _data(self) -> dict[str, Any]:
        """The data of the runs that have begun; those of the last view where they cannot be read."""
        folders = self._folders()
        begun = [folder for folder in folders if is_run(folder)]
        try:
            data = report_data([Run.open(folder) for folder in begun]) if begun else no_data(self._title())
        except (OSError, ValueError) as error:
            return {**self._view.data, "note": f"It cannot be read: {error}."}
        late = [str(folder) for folder in folders if folder not in begun] or ([] if begun else [str(default_parent())])
        return {**data, "note": _waits(late)}


def _waits(late: list[str]) -> str:
    return f"No run has begun in {', '.join(late)} yet; it is shown once it begins." if late else ""
