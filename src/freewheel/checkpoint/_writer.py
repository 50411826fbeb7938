"""Writing checkpoints: each stage writes its own file, the caller completes and publishes the checkpoint.

::

    DIR/.unfinished-4f2a…-40/stage-0.pt …        being written, one file a stage
    DIR/.unfinished-4f2a…-40/manifest.json       every file is complete and synced
    DIR/checkpoint-000003/                       renamed: from here on it is found
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from freewheel._errors import of_type, whole_number
from freewheel.checkpoint._checkpoint import GENERATORS, finished, number_of
from freewheel.checkpoint._files import File, plain, sync_folder, write_tensors, write_text
from freewheel.checkpoint._lock import UNFINISHED, writer_lock
from freewheel.checkpoint._manifest import NAME, FitPosition, Manifest
from freewheel.checkpoint._snapshot import Counts, Names, StageSnapshot
from freewheel.stage import Stage

Every = int | Literal["epoch"]
RETAINED = 2  # checkpoints of each run


@dataclass(kw_only=True)
class CheckpointWriter:
    """Writes the checkpoints of one fit. Stages in other processes have a copy of it."""

    folder: Path
    every: Every  # batches from one checkpoint to the next
    names: Sequence[Names]  # for each stage
    manifest: Manifest  # what all checkpoints of the fit have in common
    completes: bool = True  # whether this process completes the checkpoints; False if another one does
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:16])  # in the names of unfinished files
    _ended: bool = field(default=False, init=False)  # whether the end of the fit is saved

    def due(self, batches: int, *, epoch_ends: bool) -> bool:
        """Whether a checkpoint is due after a number of batches."""
        return epoch_ends if self.every == "epoch" else batches % self.every == 0

    def lock(self) -> AbstractContextManager[None]:
        """Hold the writer lock of the folder; unfinished checkpoints are removed at exit."""
        return writer_lock(self.folder, self.token) if self.completes else nullcontext()

    def write(self, batches: int, snapshot: StageSnapshot) -> File:
        """Write one stage's file of the checkpoint after a number of batches; called where the stage runs."""
        folder = self._unfinished(batches)
        folder.mkdir(exist_ok=True)
        return snapshot.write(folder, batches)

    def complete(self, files: Sequence[File], position: FitPosition, generators: Any) -> None:
        """Publish a checkpoint once every stage has written its file.

        At the end of the data with messages still in flight, nothing is published: `save` follows once the pipeline is
        drained. `generators` is what the loader draws from in the current epoch.
        """
        if position.ended and any(file.in_flight for file in files):
            return
        self._publish(self._unfinished(position.batches), files, position, generators)

    def save(
        self,
        stages: Sequence[Stage],
        counts: Sequence[Counts] = (),
        position: FitPosition | None = None,
        generators: Any = None,
    ) -> None:
        """Save drained stages: between two fits (`position` is None), or at the end of one not saved by `complete`."""
        if self._ended:
            return
        batches = 0 if position is None else position.batches
        folder = self.folder / f"{UNFINISHED}{self.token}-{batches}-end"
        with self.lock():
            folder.mkdir()
            snapshots = map(StageSnapshot.of, stages, self.names, counts or [Counts()] * len(stages))
            files = [snapshot.write(folder, batches) for snapshot in snapshots]
            self._publish(folder, files, position, generators)

    def _unfinished(self, batches: int) -> Path:
        return self.folder / f"{UNFINISHED}{self.token}-{batches}"

    def _publish(self, unfinished: Path, files: Sequence[File], position: FitPosition | None, generators: Any) -> None:
        """Add what is missing, rename the folder, and remove older checkpoints of the run."""
        manifest = replace(self.manifest, fit=position, files=tuple(files))
        if manifest.unfinished:
            file = write_tensors(unfinished, GENERATORS, plain(generators, "the loader's state"))
            manifest = replace(manifest, files=(*files, file))
        write_text(unfinished / NAME, manifest.text())
        sync_folder(unfinished)
        _rename(unfinished)
        sync_folder(self.folder)
        _prune(self.folder, manifest.run)
        self._ended = not manifest.unfinished


def _rename(unfinished: Path) -> None:
    """Give a checkpoint the next free number."""
    folder = unfinished.parent
    number = max(map(number_of, finished(folder)), default=0) + 1
    while True:
        final = folder / f"checkpoint-{number:06d}"
        try:
            os.rename(unfinished, final)
            return
        except OSError:
            if not final.exists():
                raise
            number += 1  # another run was faster


def _prune(folder: Path, run: str) -> None:
    """Remove all checkpoints of a run but the newest; damaged ones stay and do not count."""
    own: list[Path] = []
    for path in reversed(finished(folder)):
        try:
            manifest = Manifest.read(path)
            complete = all((path / file.name).stat().st_size == file.size for file in manifest.files)
        except (OSError, ValueError):
            continue
        if manifest.run == run and complete:
            own.append(path)
    for path in own[RETAINED:]:
        shutil.rmtree(path, ignore_errors=True)


# -- arguments of users -----------------------------------------------------------------------------------------------


def check_saving(save_to: object, save_every: object) -> tuple[Path, Every] | None:
    """Check the arguments of `fit`, and create the folder."""
    if save_to is None:
        if save_every is not None:
            raise ValueError(f"save_every={save_every!r} without save_to: give the folder of the checkpoints as well")
        return None
    if save_every not in (None, "epoch"):
        if isinstance(save_every, str):
            raise ValueError(f"save_every={save_every!r}: give a number of batches, or 'epoch'")
        whole_number("save_every", save_every, least=1)
    return check_folder("save_to", save_to), save_every or "epoch"  # pyright: ignore[reportReturnType]


def check_folder(name: str, path: object) -> Path:
    """Check the argument that names a folder of checkpoints, and create the folder."""
    folder = Path(of_type(name, path, (str, Path), "give the folder of the checkpoints"))
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{name}={str(path)!r}: that is a file, give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
