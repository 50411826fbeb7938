"""`freewheel bench straggler`: how much slower training becomes when stages are slow at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from freewheel.cli._bench_run import Json, Repeats, measure, write
from freewheel.cli._output import say, show, table


def straggler(
    repeats: Repeats = 3,
    batches: Annotated[int, typer.Option(metavar="N", help="Batches of each measurement.")] = 480,
    json: Json = None,
) -> None:
    """Compare how much methods lose to stages that are slow at random."""
    result = measure("straggler", json, counts={"repeats": repeats, "batches": batches})
    _show(result)
    write(result, json)


def _show(result: Mapping[str, Any]) -> None:
    columns = tuple(f"{percentage} %" for percentage in result["percentages"])
    right = ("ms a batch", "busy", *columns)
    title = f"slower by so many % when each stage is slowed with probability {result['probability']:.2f} (DSP paper)"
    shown = table("", *right, right=right, title=title)
    for row in result["rows"]:
        cells = _cells(row["slow_downs"], row["paper"])
        shown.add_row(row["name"], f"{1e3 * row['seconds']:.2f}", f"{row['busy']:.0%}", *cells)
    shown.add_row("best of DSP", "", "", *_cells(result["best"]["ours"], result["best"]["paper"]))
    shown.add_row("a stage that is always busy", "", "", *_cells(result["always_busy"]["expected"]))
    shown.add_row("the same, with these draws", "", "", *_cells(result["always_busy"]["drawn"]))
    show(shown)
    asleep = result["asleep"]
    if asleep is None:
        say("Stages computed, each on a core of its own.")
    else:
        say(
            f"There are fewer cores than stages, so computing was simulated: stages slept, {1e3 * asleep['forward']:g} "
            f"ms for a forward and {1e3 * asleep['backward']:g} ms for a backward."
        )


def _cells(ours: Iterable[float], paper: Iterable[float] = ()) -> list[str]:
    """Each number, with the paper's in brackets where it has one."""
    found = [f"{value:.1f}" for value in ours]
    known = [f" ({value:.1f})" for value in paper]
    return [a + b for a, b in zip(found, known or [""] * len(found))]
