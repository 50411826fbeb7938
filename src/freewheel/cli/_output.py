"""Writing to the terminal: plain lines, tables, and files that can be written."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

# How wide a table may be where there is no terminal to say so.
PIPED_WIDTH = 120


def say(text: str = "", *, error: bool = False) -> None:
    """Writes a line as it is: no mark-up, no wrapping."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def plural(count: int, word: str) -> str:
    """The number and the word.

    Example:
        >>> plural(1, "stage"), plural(2, "stage")
        ('1 stage', '2 stages')
    """
    return f"{count} {word}{'' if count == 1 else 's'}"


def table(*columns: str, right: tuple[str, ...] = (), wrap: tuple[str, ...] = (), title: str = "") -> Table:
    """An empty table; only the columns in `wrap` may be broken into lines."""
    out = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        out.add_column(
            column, justify="right" if column in right else "left", no_wrap=column not in wrap, overflow="fold"
        )
    return out


def show(shown: Table) -> None:
    """Prints a table, as wide as the terminal, or wide enough where there is none."""
    asked = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if asked else PIPED_WIDTH, highlight=False, markup=False).print(shown)


def check_file(option: str, path: Path | None) -> None:
    """Refuses a file that could not be written, before any work is done for it."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{option} {path}: that is a folder, give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: there is no folder {path.parent}, make it first")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise PermissionError(f"{option} {path}: {target} may not be written to")


def as_json(value: Any) -> str:
    """The value as JSON, with null for what JSON has no number for."""
    return json.dumps(plain_data(value), indent=2, ensure_ascii=False)


def plain_data(value: Any) -> Any:
    """The value in what JSON has."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
