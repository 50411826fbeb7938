"""A folder of checkpoints: finished ones have their final name, and the last two of a run are kept.

::

    DIR/.unfinished-4f2a…-40/stage-0.pt …        being written; each stage its own file
    DIR/.unfinished-4f2a…-40/manifest.json       all files are there, and on the disk
    DIR/checkpoint-000003/                       renamed: from here on it counts
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple, overload

from freewheel.checkpoint._files import DamagedError, check_file, sync_folder, write_text
from freewheel.checkpoint._manifest import NAME, Manifest

KEPT = 2
UNFINISHED = ".unfinished-"
_FINISHED = re.compile(r"checkpoint-(\d{6,})")


class Found(NamedTuple):
    """A checkpoint that is whole."""

    folder: Path
    manifest: Manifest


@overload
def find(path: Path) -> Found: ...


@overload
def find(path: Path, *, run: str) -> Found | None: ...


def find(path: Path, *, run: str | None = None) -> Found | None:
    """The checkpoint in this folder, or the last good one of those in it.

    A newer one that is damaged is passed over with a warning. With a `run`, only its own count; there may be none.
    """
    if run is not None:
        ours = (folder for _, folder in sorted(_numbered(path), reverse=True))
        return next((found for found in map(_whole, ours) if found is not None and found.manifest.run == run), None)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint at {path}: it is not a folder")
    if _FINISHED.fullmatch(path.resolve().name) or (path / NAME).exists():
        return Found(path, _checked(path))
    numbered = _numbered(path)
    if not numbered:
        raise FileNotFoundError(f"there is no finished checkpoint in {path}")
    reasons: list[str] = []
    for _, folder in sorted(numbered, reverse=True):
        try:
            found = Found(folder, _checked(folder))
        except DamagedError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            warnings.warn(f"{reason}; going on from the one before, {folder.name}", stacklevel=3)
        return found
    raise DamagedError(f"no checkpoint in {path} is whole: {reasons[0]}")


def _whole(folder: Path) -> Found | None:
    """The checkpoint in this folder, None where it is damaged."""
    try:
        return Found(folder, _checked(folder))
    except DamagedError as error:
        warnings.warn(f"{error}; going on from the one before, if there is one", stacklevel=3)
        return None


def finished(folder: Path) -> list[Path]:
    """The finished checkpoints in a folder, the oldest first; whether they are whole is not looked at."""
    return [path for _, path in sorted(_numbered(folder))]


def _checked(folder: Path) -> Manifest:
    """The manifest of a checkpoint of which every file is what was written."""
    manifest = Manifest.read(folder)
    for file in manifest.files:
        check_file(folder, file)
    return manifest


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    matches = [(_FINISHED.fullmatch(path.name), path) for path in folder.iterdir()]
    return [(int(match[1]), path) for match, path in matches if match]


def publish(unfinished: Path, manifest: Manifest) -> Path:
    """Completes a checkpoint whose files are there, gives it its name, and drops older ones of the same run."""
    folder = unfinished.parent
    write_text(unfinished / NAME, manifest.text())
    sync_folder(unfinished)
    number = max((number for number, _ in _numbered(folder)), default=0) + 1
    while True:
        final = folder / f"checkpoint-{number:06d}"
        try:
            os.rename(unfinished, final)
            break
        except OSError:
            if not final.exists():
                raise
            number += 1  # another run was faster
    sync_folder(folder)
    _prune(folder, manifest.run)
    return final


def _prune(folder: Path, run: str) -> None:
    ours: list[Path] = []
    for _, path in sorted(_numbered(folder), reverse=True):
        try:
            manifest = Manifest.read(path)
            whole = all((path / file.name).stat().st_size == file.size for file in manifest.files)
        except (OSError, ValueError):
            continue
        if manifest.run == run and whole:
            ours.append(path)
    for path in ours[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def discard(folder: Path, token: str) -> None:
    """Removes what one run has left unfinished."""
    for path in folder.glob(f"{UNFINISHED}{token}-*"):
        shutil.rmtree(path, ignore_errors=True)
