"""`freewheel bench async`: methods that race on shared weights, on the way to a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from freewheel.cli._bench_run import Json, Repeats, measure, write
from freewheel.cli._output import say, show, table


def asynchronous(
    repeats: Repeats = 3,
    epochs: Annotated[int, typer.Option(metavar="N", help="The most epochs that each gets.")] = 20,
    target: Annotated[float, typer.Option(metavar="X", help="The test accuracy to reach.")] = 0.97,
    json: Json = None,
) -> None:
    """Compare methods that race on shared weights with each other and with plain SGD."""
    if not 0 < target <= 1:
        raise ValueError(f"--target {target:g}: give an accuracy above 0 and up to 1")
    result = measure("asynchronous", json, counts={"repeats": repeats, "epochs": epochs}, target=target)
    _show(result)
    write(result, json)


def _show(result: Mapping[str, Any]) -> None:
    numbers = ("seconds", "epochs", "images/s", "best accuracy", "staleness")
    shown = table("", *numbers, right=numbers, title=f"digits, until a test accuracy of {result['target']:.1%}")
    for row in result["rows"]:
        shown.add_row(
            row["name"],
            "-" if row["seconds"] is None else f"{row['seconds']:.2f}",
            "-" if row["epochs"] is None else f"{row['epochs']:g}",
            f"{row['images_per_second']:,.0f}",
            f"{row['accuracy']:.2%}",
            f"{row['staleness']:.2f}",
        )
    show(shown)
    by_name = {row["name"]: row["layers"] for row in result["rows"]}
    for name in ("async-lu", "async-bu"):
        if name in by_name:
            say(f"{name}, staleness by layer: {', '.join(f'{n} {late:.2f}' for n, late in by_name[name].items())}")
    say()
    numbers = ("numbers", "lost", "lost, locked", "µs", "µs, locked")
    lost = table(*numbers, right=numbers, title="additions of two threads, free and locked")
    for row in result["additions"]:
        lost.add_row(
            f"{row['size']:,}",
            f"{row['lost']:.2%}",
            f"{row['lost_locked']:.2%}",
            f"{row['microseconds']:.2f}",
            f"{row['microseconds_locked']:.2f}",
        )
    show(lost)
