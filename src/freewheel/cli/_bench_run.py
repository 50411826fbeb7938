"""What the commands of `freewheel bench` have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from freewheel._errors import whole_number
from freewheel.cli._output import as_json, check_file, say, show, table

Repeats = Annotated[int, typer.Option(metavar="N", help="How often each is measured.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result there.")]


def measure(name: str, json: Path | None, *, counts: Mapping[str, int] | None = None, **options: Any) -> Any:
    """Runs the benchmark of this name, once counts and file are known to be good; it reports on standard error."""
    counts = {key: whole_number(f"--{key}", count, least=1) for key, count in (counts or {}).items()}
    check_file("--json", json)
    from freewheel import bench

    return getattr(bench, name)(**counts, **options, say=partial(say, error=True))


def write(result: Any, json: Path | None) -> None:
    """Writes the result where it was asked for, and says so."""
    if json is not None:
        json.write_text(as_json(result) + "\n", encoding="utf-8")
        say(f"wrote {json}")


def show_speeds(rows: Iterable[Mapping[str, Any]], batch_size: str, seconds: str) -> None:
    """A row a contender: its seconds a batch or step, and images a second."""
    numbers = (seconds, "images/s")
    shown = table("", *numbers, right=numbers, title=f"batches of {batch_size} images")
    for row in rows:
        shown.add_row(row["name"], f"{row['seconds']:.4f}", f"{row['images_per_second']:,.0f}")
    show(shown)
