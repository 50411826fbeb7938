"""Writing files so that an interruption leaves the old one or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


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
