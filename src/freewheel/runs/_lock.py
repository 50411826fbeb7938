"""The lock of a run: held by the process that trains, and dropped by the system when that ends, however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from freewheel.runs._layout import LOCK

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None


def take_lock(folder: Path) -> IO[bytes]:
    """Take the lock of a run; refuses a run that another process trains."""
    file = (folder / LOCK).open("ab")
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_locked(folder):
                continue  # somebody has asked, at this very moment, whether it is locked
            file.close()
            raise ValueError(f"{folder}: this run is going on in another process; wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks
        break
    return file


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a run; True where there are no locks, since nobody knows."""
    path = folder / LOCK
    if not path.exists():
        return False
    if fcntl is None:
        return True
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return True
    return False
