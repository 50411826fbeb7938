"""Runs drawn for a terminal, from the data of their page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from freewheel.cli._output import new_table
from freewheel.cli._summary import pick

RESULTS = ("metric", "loss", "train_loss", "epochs", "seconds", "rate", "speedup")  # figures of what has been reached
COLOURS = {"running": "cyan", "complete": "green", "interrupted": "yellow", "failed": "red", "lost": "red"}
WAITS = {"before": "the stage before", "after": "the one after", "replicas": "other replicas", "data": "data"}
LEVELS = "▁▂▃▄▅▆▇█"
WIDE = 32  # characters of a curve and of a bar of progress
BAR = 12  # characters of a bar of one stage


def dashboard(data: dict[str, Any], name: str) -> RenderableType:
    """The watched runs: one with its curves and stages, several as a table."""
    parts: list[RenderableType] = [Text(data["note"], "yellow")] if data["note"] else []
    parts += [
        _status(f"{each['name']}: {each['begun']} of {each['of']} runs", each["status"]) for each in data["groups"]
    ]
    if len(data["runs"]) == 1:
        parts += _single(data["runs"][0], name)
    elif data["runs"]:
        parts.append(_compared(data["runs"]))
    return Group(*parts)


def _status(name: str, status: dict[str, Any]) -> Text:
    return Text.assemble((name, "bold"), "  ", (status["text"], COLOURS[status["name"]]), "  ", status["sentence"])


def _single(run: dict[str, Any], name: str) -> Iterator[RenderableType]:
    status = run["status"]
    shown, done = Text(status["text"], COLOURS[status["name"]]), status["done"]
    yield Text(name, "bold")
    grid = Table.grid(padding=(0, 1))
    if done is None:
        grid.add_row(shown, status["sentence"])
    else:
        grid.add_row(shown, ProgressBar(total=1.0, completed=done, width=WIDE), f"{done:.0%}")
    yield grid
    yield Padding(_figures(run["figures"]), (1, 0))
    if "missing" in run["curves"]:
        yield Text(run["curves"]["missing"], "dim")
    else:
        yield _curves(run["curves"])
    yield from _stages(run)


def _figures(figures: list[dict[str, Any]]) -> Table:
    """What has been reached, beside what is trained."""
    reached = [each for each in figures if each["key"] in RESULTS]
    what = [each for each in figures if each["key"] not in RESULTS]
    grid = Table.grid(padding=(0, 2))
    for row in range(max(len(reached), len(what))):
        cells = [each[row] if row < len(each) else {"label": "", "text": ""} for each in (reached, what)]
        grid.add_row(*(Text(cell[key], style) for cell in cells for key, style in (("label", "dim"), ("text", "bold"))))
    return grid


def _curves(curves: dict[str, Any]) -> Table:
    """A line for each curve: its first value, its course, its last value."""
    known = (("training loss", "loss"), ("validation loss", "validation_loss"), (curves["metric_name"], "metric"))
    grid = Table.grid(padding=(0, 2))
    for title, key in (*known, ("samples/s", "rate")):
        values = [value for value in curves[key] or () if value is not None]
        if values:
            form = ".2%" if key == "metric" and curves["metric_is_share"] else ",.0f" if key == "rate" else ".4g"
            first, last = (Text(f"{values[at]:{form}}", justify="right") for at in (0, -1))
            grid.add_row(Text(title, "dim"), first, Text(sparkline(values) if len(values) > 1 else "", "cyan"), last)
    return grid


def sparkline(values: Sequence[float], wide: int = WIDE) -> str:
    """A curve in characters; of many values, some that are evenly spread.

    Example:
        >>> sparkline([0, 1, 2, 3, 7]), sparkline([5, 5])
        ('▁▂▃▄█', '▁▁')
    """
    shown = [values[place] for place in pick(len(values), wide)]
    least, most = min(shown), max(shown)
    scale = (len(LEVELS) - 1) / (most - least) if most > least else 0.0
    return "".join(LEVELS[round(scale * (value - least))] for value in shown)


def _stages(run: dict[str, Any]) -> Iterator[RenderableType]:
    """What each stage did with its time, and how stale it learned; of a race, how stale its layers did."""
    shares, staleness = run["shares"], run["staleness"]
    by_layer = staleness.get("rows") not in (None, shares.get("rows"))
    late = [] if by_layer or "missing" in staleness else ["staleness", *(["planned"] if staleness["planned"] else [])]
    if "missing" in shares:
        yield Text(shares["missing"], "dim")
    else:
        first, *waits = [each["key"] for each in shares["parts"]]
        waits = waits if len(waits) > 1 else []  # otherwise it is the rest
        table = new_table("", f"{first[:-1]}ing", *waits, *late, right=(*waits, *late))
        for place, row in enumerate(shares["rows"]):
            table.add_row(row, *_shares(shares["values"][place], bool(waits)), *_staleness(staleness, place, late))
        yield table
        if waits:
            yield Text(", ".join(f"{each}: waits for {WAITS[each]}" for each in waits if each in WAITS), "dim")
    if by_layer:
        layers = (f"{name} {mean:.2f}" for name, mean in zip(staleness["rows"], staleness["mean"]) if mean is not None)
        yield Text.assemble(("staleness  ", "dim"), ", ".join(layers))


def _shares(values: list[float], waits: bool) -> list[str]:
    first, *others = values
    filled = round(BAR * min(1.0, first))
    return [f"{'█' * filled}{'░' * (BAR - filled)} {first:4.0%}", *(f"{value:.0%}" for value in others if waits)]


def _staleness(staleness: dict[str, Any], place: int, columns: list[str]) -> list[str]:
    values = [staleness["mean" if column == "staleness" else column][place] for column in columns]
    return ["-" if value is None else f"{value:.3g}" for value in values]


def _compared(runs: list[dict[str, Any]]) -> Table:
    """A row for each run."""
    labels = {each["key"]: each["label"] for run in runs for each in run["figures"] if each["key"] in RESULTS}
    keys = [key for key in RESULTS if key in labels]
    columns = [labels[key] for key in keys]
    table = new_table("run", "", *columns, right=tuple(columns), wrap=("run", *columns))
    for run in runs:
        status, text = run["status"], {each["key"]: each["text"] for each in run["figures"]}
        done = "" if status["done"] is None else f" {status['done']:.0%}"
        shown = Text(f"{status['text']}{done}", COLOURS[status["name"]])
        table.add_row(run["name"], shown, *(text.get(key, "-") for key in keys))
    return table
