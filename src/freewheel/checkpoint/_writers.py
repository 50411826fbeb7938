"""Who is writing to a folder of checkpoints, so that what a killed run has left there can be told and cleared.

::

    DIR/.writer-4f2a…        of the run that writes .unfinished-4f2a…-*; locked as long as it lives

A run that is killed loses its lock, whatever killed it, since the system holds locks for living processes alone.
Between hosts locks are not to be trusted on every file system, so the file says which boot of which host wrote it, and
only a run of the same boot looks at its lock. What it cannot tell it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from freewheel.checkpoint._folder import discard

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

WRITER = ".writer-"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def writing(folder: Path, token: str) -> Iterator[None]:
    """Inside, a run may write its unfinished checkpoints; what dead runs have left is cleared, and its own at the end.

    Args:
        folder: The folder of checkpoints.
        token: Of the run's unfinished files. The process that completes them holds the lock for all that write.
    """
    clear_dead(folder)
    path = folder / f"{WRITER}{token}"
    lock = _mark(path)
    try:
        yield
    finally:
        discard(folder, token)
        if lock is not None:
            path.unlink(missing_ok=True)
            lock.close()


def clear_dead(folder: Path) -> None:
    """Removes what runs that are surely dead have left in a folder, and nothing else."""
    for path in folder.glob(f"{WRITER}*"):
        lock = _lock_of_the_dead(path)
        if lock is None:
            continue
        with lock:
            discard(folder, path.name.removeprefix(WRITER))
            path.unlink(missing_ok=True)


def _mark(path: Path) -> BinaryIO | None:
    """A new file that says who writes, locked; None where the system knows no boots or the folder no locks.

    Whoever reads what it says finds it locked: it is written under the lock, and says nothing before.
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


def _lock_of_the_dead(path: Path) -> BinaryIO | None:
    """The lock of a run that does not hold it any more; None if it does, or if that cannot be told from here."""
    try:
        file = path.open("rb+")
    except OSError:
        return None  # it has just gone, or is not ours
    boot = _boot()
    if boot is not None and file.read() == boot and _locked(file):
        return file
    file.close()
    return None


def _locked(file: BinaryIO) -> bool:
    """Takes the lock of a file, unless another one has it or there are no locks here."""
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
