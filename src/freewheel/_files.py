"""Writing files so that an interruption leaves the old one or the new one, and errors name them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def writing(path: Path, part: Path | None = None) -> Iterator[None]:
    """Context in which a file is written: an error of the system, such as a full disk, names it.

    Args:
        path: The file.
        part: The new file that takes its place, if there is one: it is not named.

    Example:
        >>> with writing(Path("weights.pt")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        OSError: weights.pt: it cannot be written (No space left on device)
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch.save says something else of it
        if not isinstance(cause, OSError) or cause.strerror is None:
            raise
        if cause.filename is not None and cause.filename != str(part):
            raise
        raise type(cause)(f"{path}: it cannot be written ({cause.strerror})") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context with the path of a new file, which takes the place of this one once it is whole."""
    if path.exists() and not path.is_file():  # such as /dev/stdout
        with writing(path):
            yield path
        return
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with writing(path, part):
            yield part
            part.replace(path)
    finally:
        with suppress(OSError):  # the first error is the one to tell
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, as a whole."""
    write_text(path, as_json(value) + "\n")


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """The value as JSON, with null for numbers that JSON does not have.

    Example:
        >>> as_json({1: (Path("a"), float("nan"))}, indent=None)
        '{"1": ["a", null]}'
    """
    finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    return json.dumps(finite, indent=indent, ensure_ascii=False)
