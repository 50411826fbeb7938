"""`freewheel bench transport`: how long a message is under way, by its size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.cli._bench_run import Json, Repeats, measure, write
from freewheel.cli._output import show, table

UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def transport(repeats: Repeats = 5, json: Json = None) -> None:
    """Compare how long messages are under way between processes and threads."""
    result = measure("transport", json, counts={"repeats": repeats})
    _show(result)
    write(result, json)


def _show(result: Mapping[str, Any]) -> None:
    """A row a contender, a column a size."""
    rows = result["rows"]
    columns = tuple(in_words(size) for size in dict.fromkeys(row["bytes"] for row in rows))
    shown = table("", *columns, right=columns, title="microseconds one way, by size of the message (GB/s)")
    for name in dict.fromkeys(row["name"] for row in rows):
        shown.add_row(name, *[_cell(row) for row in rows if row["name"] == name])
    show(shown)


def _cell(row: Mapping[str, Any]) -> str:
    speed = row["gigabytes_per_second"]
    return f"{row['microseconds']:,.0f}" + ("" if speed is None else f" ({speed:.1f})")


def in_words(size: int) -> str:
    """A number of bytes.

    Example:
        >>> in_words(4), in_words(1024), in_words(4 << 20)
        ('4 B', '1 KiB', '4 MiB')
    """
    unit, name = next((unit, name) for unit, name in UNITS if size >= unit)
    return f"{size // unit} {name}"
