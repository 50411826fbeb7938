"""Where the files of a run are, and which folders are runs.

::

    runs/fdg-digits-cnn-digits-1/
      run.json         what is trained: known at the beginning
      history.jsonl    a line for each epoch
      progress.json    how far it is
      final.json       the final figures
      trace.json.gz    what every stage has done, if that was asked for
      .lock            locked while the run is alive
    and, of a run on the command line
      config.toml      repeats it
      checkpoints/     of the running pipeline
      weights.pt       the trained network, a state_dict
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

FACTS, HISTORY, PROGRESS, FINAL = "run.json", "history.jsonl", "progress.json", "final.json"
TRACE, LOCK = "trace.json.gz", ".lock"
CHECKPOINTS, WEIGHTS = "checkpoints", "weights.pt"


def default_parent() -> Path:
    """The folder of all runs: `runs`, or what the environment variable `FREEWHEEL_RUNS` names."""
    return Path(os.environ.get("FREEWHEEL_RUNS") or "runs")


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / FACTS).is_file()


def check_folder(folder: Path) -> None:
    """Refuse what will never be the folder of a run: a file, and a folder of runs."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder}: that is a file, give the folder of a run")
    inside = next((path.parent for path in sorted(folder.glob(f"*/{FACTS}"))), None)
    if inside is not None and not is_run(folder):
        raise ValueError(f"{folder}: that is a folder of runs; name one of them, such as {inside}")


def new_folder(parent: Path, *words: str) -> Path:
    """Make a folder with the next free number for a run that these words describe.

    Example:
        >>> import tempfile
        >>> parent = Path(tempfile.mkdtemp())
        >>> [new_folder(parent, "fdg", "Own net").name for _ in range(2)]
        ['fdg-own-net-1', 'fdg-own-net-2']
    """
    stem = "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.") or "run" for word in words)
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(number) for path in parent.glob(f"{stem}-*") if (number := path.name[len(stem) + 1 :]).isdecimal()]
    for number in count(max(taken, default=0) + 1):
        folder = parent / f"{stem}-{number}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another run was faster
            continue
    raise AssertionError("unreachable")


def newest_run(parent: Path | None = None) -> Path:
    """The run in a folder of runs that began last."""
    parent = default_parent() if parent is None else parent
    found = [path.parent for path in parent.glob(f"*/{FACTS}")]
    if not found:
        raise FileNotFoundError(f"{parent}: there is no run; freewheel train begins one, or name the folder of a run")
    return max(found, key=lambda folder: (folder / FACTS).stat().st_mtime)


def each_once(folders: Sequence[Path]) -> list[Path]:
    """Folders of runs as they were given; refuses one that is given twice."""
    known: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in known:
            raise ValueError(f"{folder}: that run is given twice; name each once")
        known[folder.resolve()] = folder
    return list(known.values())
