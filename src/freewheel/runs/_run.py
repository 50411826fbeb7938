"""A run on disk, read back: also while it goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from freewheel.runs._layout import FACTS, FINAL, HISTORY, PROGRESS, TRACE, check_folder, is_run
from freewheel.runs._lock import is_locked
from freewheel.trace import Trace
from freewheel.trainer import Epoch, History

Status = Literal["running", "complete", "interrupted", "failed", "lost"]


@dataclass(frozen=True)
class Run:
    """What the folder of a run has: see `RunRecorder` and `freewheel train`.

    Files are read when they are asked for, so that a run that goes on can be followed.

    Args:
        folder: The folder.
        facts: What is trained: the content of `run.json`.

    Example:
        >>> import tempfile, torch
        >>> from functools import partial
        >>> import freewheel as fw
        >>> trainer = fw.Trainer([torch.nn.Linear(4, 2)], method="bp", loss=torch.nn.functional.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> folder = Path(tempfile.mkdtemp()) / "first"
        >>> with fw.RunRecorder(folder, trainer) as recorder:
        ...     history = trainer.fit([(torch.ones(8, 4), torch.zeros(8).long())], epochs=3, callbacks=[recorder])
        ...     recorder.finish(history)
        >>> run = fw.Run.open(folder)
        >>> run.status, run.facts["method"]["name"], run.epochs == history.epochs
        ('complete', 'bp', True)
    """

    folder: Path
    facts: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in this folder."""
        folder = Path(folder)
        check_folder(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder; give that of a run, such as runs/NAME")
        if not is_run(folder):
            raise FileNotFoundError(f"{folder}: there is no {FACTS}, so that is not the folder of a run")
        return cls(folder, _read(folder / FACTS))

    @property
    def name(self) -> str:
        """Its name: that of the folder."""
        return self.folder.resolve().name

    @property
    def status(self) -> Status:
        """Whether it goes on, how it has ended, or `lost`, if its process ended without a word."""
        final = self.final
        if final is not None:
            return final["status"]
        return "running" if is_locked(self.folder) else "lost"

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that have ended."""
        path = self.folder / HISTORY
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []  # a line ends when written
        try:
            return History.from_dict({"epochs": [json.loads(line) for line in lines]}).epochs
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: that is not what Freewheel has written; restore it, or train again") from None

    @property
    def progress(self) -> dict[str, Any] | None:
        """How far it is: `batch` of `batches` (None if unknown), `epoch` of `epochs`, and the `time` of that."""
        return _read(self.folder / PROGRESS) if (self.folder / PROGRESS).exists() else None

    @property
    def final(self) -> dict[str, Any] | None:
        """The final figures, once it has ended."""
        return _read(self.folder / FINAL) if (self.folder / FINAL).exists() else None

    @cached_property
    def children(self) -> list[Run]:
        """Of several runs, those that have begun; else none."""
        folders = [self.folder / name for name in self.facts.get("runs") or ()]
        return [Run.open(folder) for folder in folders if is_run(folder)]

    def trace(self) -> Trace | None:
        """What every stage has done, if that was recorded."""
        return Trace.load(self.folder / TRACE) if (self.folder / TRACE).exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: that is not what Freewheel has written; restore it, or train again")
    return content
