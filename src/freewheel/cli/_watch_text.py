"""`freewheel watch --text`: a dashboard in the terminal; lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from freewheel.cli._dashboard import RESULTS, dashboard
from freewheel.cli._output import print_line
from freewheel.watch import View, Watched

EVERY = 0.5  # seconds between two looks


def follow(watched: Watched) -> int:
    """Show the runs until they end, or until Ctrl-C."""
    console = Console(highlight=False, markup=False)
    draws = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    try:
        if draws:
            _draw(watched, console)
        else:
            _print(watched)
    except KeyboardInterrupt:
        print_line(f"stopped watching {watched.name}")
    return 0


def _draw(watched: Watched, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        for view in _views(watched):
            live.update(dashboard(view.data, watched.name), refresh=True)


def _print(watched: Watched) -> None:
    seen: dict[str, int] = {}
    said = None
    for view in _views(watched):
        say = view.note or f"watching {watched.name}"
        if say != said:
            print_line(said := say)
        for line in news(view.data, seen):
            print_line(line)


def _views(watched: Watched) -> Iterator[View]:
    """What is known, whenever it has changed, until nothing more is to come."""
    last: View | None = None
    while True:
        view = watched.look()
        if view is not last:
            yield view
        if not view.goes_on:
            return
        last = view
        time.sleep(EVERY)


def news(data: dict[str, Any], seen: dict[str, int]) -> Iterator[str]:
    """A line for each epoch that is new, and for each run that has ended; `seen` counts the lines of each run.

    Example:
        >>> run = {"name": "a", "status": {"name": "complete", "text": "Complete", "sentence": ""}, "figures": [],
        ...        "curves": {"epochs": [1], "loss": [0.25], "metric": None, "rate": [1200.0], "metric_name": None}}
        >>> seen = {}
        >>> list(news({"runs": [run]}, seen)), list(news({"runs": [run]}, seen))
        (['epoch 1: loss 0.2500, 1,200 samples/s', 'complete'], [])
    """
    for run in data["runs"]:
        name, curves = run["name"], run["curves"]
        title = f"{name}: " if len(data["runs"]) > 1 else ""
        epochs = [] if "missing" in curves else curves["epochs"]
        ended = run["status"]["name"] != "running"
        for row in range(seen.get(name, 0), len(epochs)):
            yield f"{title}epoch {epochs[row]}: {_epoch(curves, row)}"
        if ended and seen.get(name, 0) <= len(epochs):
            yield f"{title}{_end(run)}"
        seen[name] = len(epochs) + ended


def _epoch(curves: dict[str, Any], row: int) -> str:
    metric = curves["metric"] and curves["metric"][row]
    form = ".2%" if curves.get("metric_is_share") else ".4g"
    return ", ".join(
        f"{text}"
        for text, known in (
            (f"loss {curves['loss'][row]:.4f}" if curves["loss"][row] is not None else "no finite loss", True),
            (f"{curves['metric_name']} {metric or 0:{form}}", metric is not None),
            (f"{curves['rate'][row] or 0:,.0f} samples/s", curves["rate"][row] is not None),
        )
        if known
    )


def _end(run: dict[str, Any]) -> str:
    """How a run has ended, in a line."""
    found = ", ".join(f"{each['label'].lower()} {each['text']}" for each in run["figures"] if each["key"] in RESULTS)
    said = run["status"]["sentence"]
    return run["status"]["text"].lower() + (f": {found}" if found else "") + (f". {said}" if said else "")
