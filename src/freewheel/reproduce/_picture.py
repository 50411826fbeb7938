"""A report as pictures: our numbers beside the paper's, and curves over epochs and time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from freewheel.reproduce._experiment import Cell
from freewheel.reproduce._report import CellReport, Report

# Okabe and Ito's colours, which colour-blind people can tell apart, and four more for large tables.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#1b1b1b"),
    *("#8c564b", "#5e3c99", "#a6bd1f", "#00a7b5"),
)
LINES = ("-", "--", ":", "-.")
SPREAD = 40.0  # of the numbers of a panel, from which on its axis is logarithmic
HEIGHT = 0.17  # inches of a number


def check_pictures() -> None:
    """Refuse to begin where no picture could be drawn in the end."""
    _figure()


def save_pictures(report: Report, folder: Path) -> list[str]:
    """Draw what has numbers, and return the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"table.svg": _table(report), "curves.svg": _curves(report)}
    for name, figure in drawn.items():
        (folder / name).unlink(missing_ok=True)
        if figure is not None:
            figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    return [name for name, figure in drawn.items() if figure is not None]


def _figure(**options: Any) -> Any:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError(
            "`freewheel reproduce` draws, and needs matplotlib: pip install 'freewheel[bench]'"
        ) from None
    matplotlib.rcParams["svg.hashsalt"] = "freewheel"  # the same picture of the same numbers
    matplotlib.rcParams["svg.fonttype"] = "none"
    return Figure(**options)


def _table(report: Report) -> Any:
    """A panel for each unit; a row of the table has a number of each column, one below the other."""
    known = [row for row in report.rows if row.ours is not None or row.paper.value is not None]
    columns = [column for column in report.experiment.table.columns if any(row.column == column for row in known)]
    units = list(dict.fromkeys(report.experiment.table.unit_of(column) for column in columns))
    if not units:
        return None
    rows = list(dict.fromkeys(row.row for row in known))
    most = max(sum(row.row == name for row in known if row.unit == unit) for unit in units for name in rows)
    height = 1.3 + len(rows) * (HEIGHT * max(most, 1) + 0.12)
    figure = _figure(figsize=(2.6 + 3.6 * len(units), height), layout="constrained")
    panels = figure.subplots(1, len(units), squeeze=False, sharey=True)[0]
    for axes, unit in zip(panels, units):
        _dots(axes, [row for row in known if row.unit == unit], rows, columns, unit)
    panels[0].set_yticks(range(len(rows)), [fill(row, 34) for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    handles = [panels[0].plot([], [], "o", color=_colour(columns, column), label=column)[0] for column in columns]
    handles += panels[0].plot([], [], "o", color="#444", label="ours")
    handles += panels[0].plot([], [], "o", color="#444", fillstyle="none", label="paper")
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize=8)
    figure.suptitle(_title(report), fontsize=10, x=0.01, ha="left")
    return figure


def _title(report: Report) -> str:
    scaled = "\nscaled down: comparable with each other, not with the paper" * report.quick
    return fill(f"{report.experiment.name}: {report.experiment.table.title}", 78) + scaled


def _dots(axes: Any, known: Sequence[CellReport], rows: Sequence[str], columns: Sequence[str], unit: str) -> None:
    """Ours as discs with their deviation, the paper's as circles, joined where there are both."""
    here = [column for column in columns if any(row.column == column for row in known)]
    step = 0.76 / max(1, len(here))
    for row in known:
        place = rows.index(row.row) + step * (here.index(row.column) - (len(here) - 1) / 2)
        colour, paper = _colour(columns, row.column), row.paper.value
        if row.ours is not None and paper is not None:
            axes.plot([row.ours, paper], [place, place], "-", color=colour, alpha=0.35, linewidth=1.5)
        if paper is not None:
            axes.errorbar(
                paper,
                place,
                xerr=row.paper.deviation,
                fmt="o",
                color=colour,
                fillstyle="none",
                markersize=5,
                linewidth=1,
            )
        if row.ours is not None:
            axes.errorbar(row.ours, place, xerr=row.deviation, fmt="o", color=colour, markersize=4, linewidth=1)
    values = [value for row in known for value in (row.ours, row.paper.value) if value is not None]
    if min(values) > 0 and max(values) / min(values) > SPREAD:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    for place in range(1, len(rows)):
        axes.axhline(place - 0.5, color="#ddd", linewidth=0.6, zorder=0)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _colour(names: Sequence[str], name: str) -> str:
    return COLOURS[names.index(name) % len(COLOURS)]


def _curves(report: Report) -> Any:
    """The mean curve of each cell over epochs and over seconds; the paper's number is a circle at its end."""
    found = [(cell, *curve) for cell, name in _once(report) if (curve := _mean(report, cell, name))]
    if not found:
        return None
    figure = _figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = list(dict.fromkeys(cell.row for cell, *_ in found))
    columns = list(dict.fromkeys(cell.column for cell, *_ in found))
    for cell, values, clock in found:
        style = {"color": _colour(rows, cell.row), "linestyle": LINES[columns.index(cell.column) % len(LINES)]}
        label = f"{cell.row}, {cell.column}" if len(columns) > 1 else cell.row
        epochs = range(1, len(values) + 1)
        left.plot(epochs, values, label=label, linewidth=1.3, **style)
        right.plot(clock, values, linewidth=1.3, **style)
        paper = report.experiment.table.figure(cell.row, cell.column).value
        if paper is not None and not report.quick:
            left.plot(len(values), paper, "o", fillstyle="none", color=style["color"])
    for axes, title in ((left, "epochs"), (right, "seconds")):
        axes.set_xlabel(title)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel(report.experiment.axis)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(_title(report), fontsize=10, x=0.01, ha="left")
    return figure


def _once(report: Report) -> Iterator[tuple[Cell, str]]:
    """The cells and the names of their curves, each curve of a job only once."""
    seen = set()
    for cell in report.cells:
        name = report.experiment.curve.format(column=cell.column)
        if name and (cell.measure.jobs, name) not in seen:
            seen.add((cell.measure.jobs, name))
            yield cell, name


def _mean(report: Report, cell: Cell, name: str) -> tuple[list[float], list[float]] | None:
    """The mean of a curve and of its times over the seeds, as far as all of them go."""
    results = [result for job in cell.measure.jobs for result in report.results(job) if result.get(name)]
    if not results:
        return None
    curve, clock = (
        [statistics.fmean(each) for each in zip(*(result[key] for result in results))] for key in (name, "clock")
    )
    return curve, clock
