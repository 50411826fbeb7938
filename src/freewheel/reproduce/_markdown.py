"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from freewheel.reproduce._figures import PAPERS
from freewheel.reproduce._report import NOTHING, CellReport, Report, shown, shown_difference, shown_paper, shown_time

HEADINGS = ("", "", "unit", "paper", "ours", "difference", "runs", "time")
FEW = 6  # names in a line


def heading(report: Report) -> Iterator[str]:
    """What the table is, in lines."""
    table = report.experiment.table
    yield f"{table.title}: {table.where} of {PAPERS[table.paper]}."
    yield f"Paper: {table.statistic}. Here: {of_runs(report)}, in {shown_time(report.seconds)} on {hardware(report)}."
    if report.at_once > 1:
        yield f"Up to {report.at_once} trainings ran at a time: their times are longer than those of one alone."
    if report.interrupted:
        yield "Interrupted: the same command goes on where it stopped."
    if report.quick:
        yield "Scaled down (`--quick`): these numbers only show that it runs; they say nothing about the paper's."
    if report.replaced:
        yield f"Replaced: {'; '.join(report.replaced)}."
    if report.left_out:
        yield f"Left out: {few(report.left_out)}."


def of_runs(report: Report) -> str:
    """How our numbers sum up the runs."""
    if not any(job.seeded for job, _ in report.records) and report.records:
        return "one measurement each"
    if report.seeds == 1:
        return "one run each, seed 0"
    return f"{report.experiment.statistic} of {report.seeds} runs, seeds 0 to {report.seeds - 1}"


def hardware(report: Report) -> str:
    """The machines that have measured, in words, and when."""
    found = [record["machine"] for record in report.records.values()] or [report.machine]
    dates = sorted({machine["date"] for machine in found})
    return (
        " and ".join([*dict.fromkeys(map(_machine, found))]) + ", " + " to ".join(dict.fromkeys((dates[0], dates[-1])))
    )


def _machine(machine: Mapping[str, Any]) -> str:
    device = machine["processor" if machine["device"] == "cpu" else "device"]
    return f"{device}, {machine['cores']} cores, PyTorch {machine['torch']}"


def few(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    rest = len(names) - FEW
    return "; ".join(names[:FEW]) + (f" and {rest} more" if rest > 0 else "")


def line(row: CellReport) -> tuple[str, ...]:
    """The entries of a cell under `HEADINGS`."""
    places = row.paper.places
    ours = shown(row.ours, row.deviation, places) if row.ours is not None else row.error or NOTHING
    return (
        row.row,
        row.column,
        row.unit,
        shown_paper(row.paper),
        ours,
        shown_difference(row.difference, places),
        str(row.runs) if len(row.values) in (0, row.runs) else f"{len(row.values)} of {row.runs}",
        shown_time(row.seconds) if row.seconds else NOTHING,
    )


def markdown(report: Report, pictures: Iterable[str]) -> str:
    """The report as a page."""
    table = report.experiment.table
    lines = [f"# {report.experiment.name}", "", *(f"{text}  " for text in heading(report)), ""]
    lines += [f"`{report.command}`", "", _row(HEADINGS), _row(["---"] * 3 + ["---:"] * 5)]
    lines += [_row(line(row)) for row in report.rows]
    if table.notes:
        lines += ["", "Notes:", "", *(f"- {note}" for note in table.notes)]
    for picture in pictures:
        lines += ["", f"![{table.title}]({picture})"]
    return "\n".join(lines) + "\n"


def _row(entries: Iterable[str]) -> str:
    return f"| {' | '.join(entry.replace('|', '∣') for entry in entries)} |"
