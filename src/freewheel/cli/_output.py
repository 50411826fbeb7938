"""Writing to the terminal and to files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from freewheel import _files as files

INTERRUPTED = 130  # the exit code after Ctrl-C
PIPED_WIDTH = 120  # the width of a table where there is no terminal


def print_line(text: str = "", *, error: bool = False) -> None:
    """Print a line as it is: no mark-up, no wrapping."""
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


def new_table(*columns: str, right: tuple[str, ...] = (), wrap: tuple[str, ...] = (), title: str = "") -> Table:
    """An empty table; only the columns in `wrap` may be broken into lines."""
    out = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        justify = "right" if column in right else "left"
        out.add_column(column, justify=justify, no_wrap=column not in wrap, overflow="fold")
    return out


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal, or wide enough where there is none."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if known else PIPED_WIDTH, highlight=False, markup=False).print(table)


def check_file(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before any work is done for it."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{option} {path}: that is a folder, give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: there is no folder {path.parent}, make it first")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise PermissionError(f"{option} {path}: no permission to write to {target}")


def write_json(value: Any, path: Path | None) -> list[str]:
    """Write the value to a file, if one is given; return the lines that report it."""
    if path is None:
        return []
    files.write_json(path, value)
    return [f"wrote {path}"]


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of a network: its `state_dict`."""
    with files.writing(path), path.open("wb") as file:
        torch.save(model.state_dict(), file)
