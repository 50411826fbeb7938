"""The vocabulary of a data set: the words by their index, created once and cached in a file."""

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
MARKS = ("<padding>", "<unknown>")  # no word contains < or >


def most_frequent(texts: Iterable[Iterable[str]], size: int) -> tuple[str, ...]:
    """The two marks and the most frequent words, `size` in all; ties are broken alphabetically.

    Example:
        >>> most_frequent([["a", "film"], ["a", "good", "film"], ["bad"]], 5)
        ('<padding>', '<unknown>', 'a', 'film', 'bad')
    """
    counts = Counter(chain.from_iterable(texts))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*MARKS, *ranked[: size - len(MARKS)])


def cached(folder: Path, source: str, create: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """The vocabulary of a source, read from a cache file if there is one, otherwise created and cached.

    The file is in `folder` or, if that is read-only, in the user's cache folder. Its name and content identify the
    source, so that a changed source has another file. It is replaced atomically: if several processes create it at
    once, the last one wins, and all are equal.

    Args:
        folder: The folder of the data.
        source: Identifies everything the vocabulary depends on.
        create: Creates it.
    """
    name = f"vocabulary-{hashlib.sha256(source.encode()).hexdigest()[:16]}.json"
    places = [place / name for place in (folder, *cache_folders())]
    for place in places:
        found = _read_cache(place, source)
        if found is not None:
            return found
    made = create()
    text = json.dumps({"source": source, "vocabulary": made}, ensure_ascii=False)
    any(_replace(place, text) for place in places)  # if no place is writable, it is created again the next time
    return made


def cache_folders() -> list[Path]:
    """The user's cache folder, if there is one."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(folder) / "freewheel"] if os.path.isabs(folder) else []


def _read_cache(path: Path, source: str) -> tuple[str, ...] | None:
    """The cached vocabulary, None if there is none for this source."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return tuple(content["vocabulary"]) if content["source"] == source else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replace(path: Path, text: str) -> bool:
    """Write a file atomically; return whether that succeeded."""
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
