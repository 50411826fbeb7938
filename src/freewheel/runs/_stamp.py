"""Whether a run has changed, without reading it."""

from __future__ import annotations

from pathlib import Path

from freewheel.runs._layout import FACTS, FINAL, HISTORY, PROGRESS, TRACE
from freewheel.runs._lock import is_locked

Stamp = tuple[object, ...]


def stamp_of(folder: Path) -> Stamp:
    """What differs once a file of the run, or of a run within it, has changed, or its process has ended.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> before = stamp_of(folder)
        >>> before == stamp_of(folder), (folder / HISTORY).write_text("{}"), before == stamp_of(folder)
        (True, 2, False)
    """
    within = sorted(path.parent for path in folder.glob(f"*/{FACTS}"))
    return (*_own(folder), *(_own(each) for each in within))


def _own(folder: Path) -> Stamp:
    files = [_file(folder / name) for name in (FACTS, HISTORY, PROGRESS, FINAL, TRACE)]
    return (folder.name, is_locked(folder), *files)


def _file(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
