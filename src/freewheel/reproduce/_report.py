"""A report: our number beside the paper's, cell by cell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from freewheel.reproduce._experiment import STATISTICS, Cell, Experiment, Result, jobs_of
from freewheel.reproduce._figures import PAPERS, Figure
from freewheel.reproduce._store import Record
from freewheel.reproduce.jobs import Job

NOTHING = "–"


@dataclass(frozen=True, kw_only=True)
class CellReport:
    """What came out for a cell.

    Args:
        row, column, unit: The place in the paper's table.
        paper: The number there.
        values: Ours, one for each seed that has one.
        runs: How many seeds were measured.
        ours: Their mean or median, as the paper reports it; None without a value.
        seconds: How long the jobs took, all seeds together.
        error: Why there is no value.
        comparable: Whether it was measured as in the paper; a scaled-down version was not.
    """

    row: str
    column: str
    unit: str
    paper: Figure
    values: tuple[float, ...] = ()
    runs: int = 0
    ours: float | None = None
    seconds: float = 0.0
    error: str = ""
    comparable: bool = True

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, where they can be compared."""
        if not self.comparable or self.ours is None or self.paper.value is None:
            return None
        return self.ours - self.paper.value

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, with the mean, the median and the extremes of the values."""
        sums = {"mean": statistics.fmean, "median": statistics.median, "least": min, "most": max}
        known = {name: how(self.values) if self.values else None for name, how in sums.items()}
        return {**asdict(self), **known, "deviation": self.deviation, "difference": self.difference}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The cells of an experiment, and how they came about.

    Args:
        experiment: The experiment.
        cells: The chosen cells, with the jobs that ran for them.
        records: The results by job and seed.
        seeds: The seeds.
        quick: Whether it is a scaled-down version.
        replaced: What stands for what, in words.
        errors: Why jobs have no result.
        machine: Where it ran.
        command: The command that repeats it.
        interrupted: Whether it was interrupted.
    """

    experiment: Experiment
    cells: Sequence[Cell]
    records: Mapping[tuple[Job, int], Record]
    seeds: int
    quick: bool
    replaced: tuple[str, ...]
    errors: Mapping[Job, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    interrupted: bool = False

    @cached_property
    def rows(self) -> tuple[CellReport, ...]:
        """A report for each chosen cell."""
        return tuple(self._cell(cell) for cell in self.cells)

    @property
    def seconds(self) -> float:
        """How long all jobs took."""
        return sum(record["seconds"] for record in self.records.values())

    @property
    def at_once(self) -> int:
        """How many jobs ran at a time, at the most."""
        return max((record["at_once"] for record in self.records.values()), default=1)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The rows of the table of which no cell was chosen, and the other cells that were not."""
        chosen = {cell.name for cell in self.cells}
        rows = {cell.row for cell in self.cells}
        names = (
            cell.name if cell.row in rows else cell.row for cell in self.experiment.cells if cell.name not in chosen
        )
        return tuple(dict.fromkeys(names))

    def results(self, job: Job) -> list[Result]:
        """The measures of a job, one for each seed."""
        seeds = range(self.seeds) if job.seeded else range(1)
        return [self.records[job, seed]["measures"] for seed in seeds if (job, seed) in self.records]

    def _cell(self, cell: Cell) -> CellReport:
        table, jobs = self.experiment.table, jobs_of([cell])
        known = {job: self.results(job) for job in jobs}
        count = min(len(results) for results in known.values())
        found = [cell.measure.value({job: results[i] for job, results in known.items()}) for i in range(count)]
        values = tuple(value for value in found if value is not None)
        seconds = sum(self.records[job, seed]["seconds"] for job, seed in self.records if job in jobs)
        error = next((self.errors[job] for job in jobs if job in self.errors), "")
        if count and not values and not error:
            diverged = any("diverged" in result for results in known.values() for result in results)
            error = "diverged" if diverged else "not reached"
        return CellReport(
            row=cell.row,
            column=cell.column,
            unit=table.unit_of(cell.column),
            paper=table.figure(cell.row, cell.column),
            values=values,
            runs=count,
            ours=STATISTICS[self.experiment.statistic](values) if values else None,
            seconds=seconds,
            error=error,
            comparable=not self.quick,
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        table = self.experiment.table
        return {
            "name": self.experiment.name,
            "paper": PAPERS[table.paper],
            "where": table.where,
            "title": table.title,
            "statistic": {"paper": table.statistic, "ours": self.experiment.statistic, "seeds": self.seeds},
            "quick": self.quick,
            "replaced": self.replaced,
            "left_out": self.left_out,
            "notes": table.notes,
            "command": self.command,
            "machine": self.machine,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "cells": [row.as_dict() for row in self.rows],
            "jobs": [{"title": job.title, "seed": seed, **record} for (job, seed), record in self.records.items()],
        }


def shown(value: float | None, deviation: float | None = None, places: int | None = None) -> str:
    """A number in so many decimal places, or in four digits, and its deviation in two.

    Example:
        >>> shown(93.7124, 0.1634), shown(0.0049), shown(1038.8, 61), shown(None)
        ('93.71 ± 0.16', '0.0049', '1,039 ± 61', '–')
        >>> shown(6.6, places=2), shown(0.0004, places=2)
        ('6.60', '0.0004')
    """
    if value is None:
        return NOTHING
    if places is not None and (not value or round(value, places)):
        number = f"{value:,.{places}f}"
    else:
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if deviation is None:
        return number
    return f"{number} ± {deviation:.0f}" if deviation >= 100 else f"{number} ± {deviation:.2g}"


def shown_paper(figure: Figure) -> str:
    """The paper's number, or why there is none."""
    return shown(figure.value, figure.deviation, figure.places) if figure.kind == "number" else figure.kind


def shown_difference(value: float | None, places: int | None = None) -> str:
    """A difference with its sign."""
    return NOTHING if value is None else ("+" if value >= 0 else "−") + shown(abs(value), places=places)


def shown_time(seconds: float) -> str:
    """A duration.

    Example:
        >>> shown_time(3.21), shown_time(75), shown_time(7300)
        ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
