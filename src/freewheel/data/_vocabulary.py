"""The words that a data set knows, by their number; made once and kept in a file."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

PADDING, UNKNOWN = 0, 1
MARKS = ("<padding>", "<unknown>")  # no word looks like these


def most_frequent(texts: Iterable[Iterable[str]], size: int) -> tuple[str, ...]:
    """The two marks and the most frequent words, `size` in all; of equally frequent ones those early in the alphabet.

    Example:
        >>> most_frequent([["a", "film"], ["a", "good", "film"], ["bad"]], 5)
        ('<padding>', '<unknown>', 'a', 'film', 'bad')
    """
    counts = Counter(chain.from_iterable(texts))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*MARKS, *ranked[: size - len(MARKS)])


def cached(folder: Path, source: str, make: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """The vocabulary of a source: read from a file where there is one, else made, and kept in one.

    The file lies in `folder`, or where nothing can be written there, in the user's cache folder. Its name and its
    content say what it was made from, so that a changed source has another. It appears as a whole: of several processes
    that make it at once, the last one's stays, and all are the same.

    Args:
        folder: Where the data is.
        source: Tells all that the vocabulary depends on.
        make: Makes it.
    """
    name = f"vocabulary-{hashlib.sha256(source.encode()).hexdigest()[:16]}.json"
    places = [place / name for place in (folder, *cache_folders())]
    for place in places:
        found = _read(place, source)
        if found is not None:
            return found
    made = make()
    text = json.dumps({"source": source, "vocabulary": made}, ensure_ascii=False)
    any(_write(place, text) for place in places)  # where no place takes it, it is made again the next time
    return made


def cache_folders() -> list[Path]:
    """The user's folder for what can be made again, if there is one."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(folder) / "freewheel"] if os.path.isabs(folder) else []


def _read(path: Path, source: str) -> tuple[str, ...] | None:
    """What was kept, None where there is nothing or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return tuple(content["vocabulary"]) if content["source"] == source else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, text: str) -> bool:
    """Writes a file under another name and renames it; tells whether that went well."""
    unfinished = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True
