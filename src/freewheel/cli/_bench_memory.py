"""`freewheel bench memory`: what a training step holds beyond weights and batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from freewheel.cli._bench_run import Json, measure, write
from freewheel.cli._output import check_file, say, show, table

INTERRUPTED = 130


def memory(
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this: fc-depth, rnn-length, conv-depth, conv-width or conv-batch."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to train.")] = "cpu",
    json: Json = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: svg, png or pdf.")] = None,
) -> None:
    """Compare the memory of training by backpropagation and by forward gradients.

    Ctrl-C ends it with what has been measured so far.
    """
    check_file("--picture", picture)
    from freewheel.bench._memory_picture import check_picture, save_picture

    if picture is not None:
        check_picture(picture)
    result = measure("memory", json, sweeps=sweep or (), device=device)
    for part in result["sweeps"]:
        _show(part)
    for finding in result["findings"]:
        say(f"{finding['about']}: {finding['found']:.3f} (hoped for: at most {finding['limit']:.3f})")
    write(result, json)
    if picture is not None:
        save_picture(result["sweeps"], picture)
        say(f"wrote {picture}")
    if result["interrupted"]:
        say("interrupted", error=True)
        raise typer.Exit(INTERRUPTED)


def _show(part: Mapping[str, Any]) -> None:
    """A row a contender, a column a value."""
    values = list(dict.fromkeys(row["value"] for row in part["rows"]))
    columns = tuple(f"{value}" for value in values)
    title = f"{part['title']}: peak MB of tensors (of the process), by {part['unit']}"
    shown = table("", *columns, right=columns, title=title)
    for name in dict.fromkeys(row["contender"] for row in part["rows"]):
        cells = [_cell(row) for row in part["rows"] if row["contender"] == name]
        shown.add_row(name, *cells)
    show(shown)


def _cell(row: Mapping[str, Any]) -> str:
    extra = f"{row['extra'] / 1e6:.1f}"
    return extra if row["resident"] is None else f"{extra} ({row['resident'] / 1e6:.1f})"
