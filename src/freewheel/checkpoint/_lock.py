"""The writer lock: which runs write to a folder of checkpoints, and which unfinished files are stale.

::

    DIR/.writer-4f2a…        of the run that writes .unfinished-4f2a…-*; locked while that run is alive

A killed run loses its lock, whatever killed it: the system drops the locks of a process that ends. Locks between hosts
are not reliable on every file system, so the file names the boot of the host that wrote it, and only runs of the same
boot test the lock. Files whose writer may be alive stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

UNFINISHED = ".unfinished-"
WRITER = ".writer-"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def writer_lock(folder: Path, token: str) -> Iterator[None]:
    """Hold a writer's lock; remove the files of dead writers at entry and its own unfinished ones at exit.

    The process that completes a writer's checkpoints holds the lock for all stages.
    """
    remove_stale(folder)
    path = folder / f"{WRITER}{token}"
    lock = _create(path)
    try:
        yield
    finally:
        _remove_unfinished(folder, token)
        if lock is not None:
            path.unlink(missing_ok=True)
            lock.close()


def remove_stale(folder: Path) -> None:
    """Remove the unfinished files of writers that are known to be dead."""
    for path in folder.glob(f"{WRITER}*"):
        lock = _lock_if_stale(path)
        if lock is None:
            continue
        with lock:
            _remove_unfinished(folder, path.name.removeprefix(WRITER))
            path.unlink(missing_ok=True)


def _remove_unfinished(folder: Path, token: str) -> None:
    for path in folder.glob(f"{UNFINISHED}{token}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _create(path: Path) -> BinaryIO | None:
    """Create a locked file that names this boot; None on systems without boot ids or file systems without locks.

    The boot id is written under the lock, so that an unlocked file that has one is stale.
    """
    boot = _boot()
    if boot is None:
        return None
    file = path.open("xb")
    if not _locked(file):
        file.close()
        path.unlink()
        return None
    file.write(boot)
    file.flush()
    return file


def _lock_if_stale(path: Path) -> BinaryIO | None:
    """Take the lock of a dead writer; None if the writer is alive or may be."""
    try:
        file = path.open("rb+")
    except OSError:
        return None  # just removed, or not ours
    boot = _boot()
    if boot is not None and file.read() == boot and _locked(file):
        return file
    file.close()
    return None


def _locked(file: BinaryIO) -> bool:
    """Try to lock a file; False if it is locked already or locks are not supported."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _boot() -> bytes | None:
    try:
        return _BOOT.read_bytes().strip() or None
    except OSError:
        return None
