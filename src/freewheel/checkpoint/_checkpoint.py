"""Checkpoints on disk: found, verified, and loaded into stages."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from freewheel._errors import of_type
from freewheel.checkpoint._files import DamagedError, check_file, read_tensors
from freewheel.checkpoint._manifest import NAME, FitPosition, Manifest
from freewheel.checkpoint._settings import difference, same_heads, settings_of
from freewheel.checkpoint._snapshot import Counts, StageSnapshot, file_name, load_state
from freewheel.stage import Stage

GENERATORS = "generators.pt"
_FINISHED = re.compile(r"checkpoint-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files are intact."""

    folder: Path
    manifest: Manifest
    snapshots: tuple[StageSnapshot, ...] = ()  # what stages resume from; if empty, they read their files

    @classmethod
    def verified(cls, folder: Path) -> Checkpoint:
        """The checkpoint in this folder; raise `DamagedError` if a file is missing or damaged."""
        manifest = Manifest.read(folder)
        for file in manifest.files:
            check_file(folder, file)
        return cls(folder, manifest)

    @property
    def position(self) -> FitPosition:
        """Where the fit stands that this checkpoint is of."""
        assert self.manifest.fit is not None
        return self.manifest.fit

    @property
    def forwarded(self) -> tuple[int, ...]:
        """For each stage, the batches of the fit that it has forwarded."""
        if self.snapshots:
            return (self.manifest.batches,) * len(self.snapshots)
        return tuple(self._files[file_name(k)].forwarded or 0 for k in range(self._stages))

    def snapshot(self, stage: int, replica: int = 0) -> StageSnapshot:
        """What one stage resumes from; called where the stage runs."""
        if not self.snapshots:
            return StageSnapshot.read(self.folder, self._files[file_name(stage, replica)])
        own = self.snapshots[stage]
        return own if replica == 0 else replace(own, counts=Counts())  # replica 0 has the counts of all

    def generators(self) -> Any:
        """What the loader draws from in the current epoch."""
        return read_tensors(self.folder, self._files[GENERATORS])

    def load(self, stages: Sequence[Stage], names: Sequence[dict[str, str]]) -> Checkpoint:
        """Load the state into stages, and return the checkpoint as these stages resume from it.

        They need not be the stages that were saved, if nothing is in flight. `names` has the names of their tensors in
        the whole network.
        """
        manifest, settings = self.manifest, settings_of(stages[0].options)
        self._check_torch()
        changed = difference(manifest.settings, settings)
        if changed is not None and not manifest.drained:
            name, before, now = changed
            raise ValueError(
                f"{name}={now!r}, but {self.folder} has batches in flight that resume only with {name}={before!r}: "
                "give that, or a checkpoint that is drained (the end of a fit, or trainer.save)"
            )
        saved = [self.snapshot(k) for k in range(self._stages)]
        if changed is not None and any(each.gradients for each in saved):
            raise ValueError(
                f"the checkpoint holds gradients accumulated by {', '.join(manifest.settings['corrections'])}, which "
                "resume only with the same method, stages, seed and threads: give these"
            )
        heads = same_heads(manifest.settings, settings)
        load_state(stages, names, saved, corrections=changed is None, heads=heads)
        if not manifest.unfinished:
            return self
        if changed is not None:
            return replace(self, snapshots=self._for_others(len(stages), saved[0].epoch))
        if saved[0].pending is None:
            return replace(self, snapshots=tuple(each.without_state() for each in saved))
        return self

    def _for_others(self, stages: int, epoch: int) -> tuple[StageSnapshot, ...]:
        """What stages resume from that are not those saved: of the counts, only the losses of the last stage."""
        names = [file_name(self._stages - 1, replica) for replica in range(self.manifest.settings["replicas"])]
        last = [StageSnapshot.read(self.folder, self._files[name]) for name in names if name in self._files]
        counts = Counts(losses=[loss for snapshot in last for loss in snapshot.counts.losses])
        bare = [StageSnapshot(stage=k, epoch=epoch) for k in range(stages)]
        return (*bare[:-1], replace(bare[-1], counts=counts))

    def _check_torch(self) -> None:
        if self.manifest.torch != torch.__version__:
            warnings.warn(
                f"the checkpoint was saved with torch {self.manifest.torch}, this is {torch.__version__}: training "
                "resumes, but results may not be bit-identical",
                stacklevel=5,
            )

    @property
    def _stages(self) -> int:
        return self.manifest.settings["stages"]

    @property
    def _files(self) -> dict[str, Any]:
        return {file.name: file for file in self.manifest.files}


def find(path: str | Path) -> Checkpoint:
    """The checkpoint in this folder, or the newest intact one of those in it.

    Newer ones that are damaged are skipped with a warning.
    """
    hint = "give the folder of a checkpoint, or the one passed as save_to"
    path = Path(of_type("path", path, (str, Path), hint))
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint at {path}: it is not a folder")
    if _FINISHED.fullmatch(path.resolve().name) or (path / NAME).exists():
        return Checkpoint.verified(path)
    folders = finished(path)
    if not folders:
        raise FileNotFoundError(f"there is no finished checkpoint in {path}")
    reasons: list[str] = []
    found = next(_intact(folders, reasons), None)
    if found is None:
        raise DamagedError(f"no checkpoint in {path} is intact: {reasons[0]}")
    for reason in reasons:
        warnings.warn(f"{reason}; resuming from the previous one, {found.folder.name}", stacklevel=3)
    return found


def find_latest(path: Path, run: str) -> Checkpoint | None:
    """The newest intact checkpoint of a run in this folder, if there is one."""
    reasons: list[str] = []
    found = next((each for each in _intact(finished(path), reasons) if each.manifest.run == run), None)
    for reason in reasons:
        warnings.warn(f"{reason}; resuming from the previous one, if there is one", stacklevel=3)
    return found


def _intact(folders: Sequence[Path], reasons: list[str]) -> Iterator[Checkpoint]:
    """The intact checkpoints, the newest first; what is wrong with others is added to `reasons`."""
    for folder in reversed(folders):
        try:
            yield Checkpoint.verified(folder)
        except DamagedError as error:
            reasons.append(str(error))


def finished(folder: Path) -> list[Path]:
    """The finished checkpoints in a folder, the oldest first, intact or not."""
    return sorted((path for path in folder.iterdir() if _FINISHED.fullmatch(path.name)), key=number_of)


def number_of(path: Path) -> int:
    """The number of a finished checkpoint.

    Example:
        >>> number_of(Path("run/checkpoint-000012"))
        12
    """
    match = _FINISHED.fullmatch(path.name)
    assert match is not None
    return int(match[1])
