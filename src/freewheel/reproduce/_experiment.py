"""An experiment: which job gives each number of a table."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from freewheel.reproduce._figures import PaperTable, tables
from freewheel.reproduce.jobs import Job

Result = Mapping[str, Any]  # the measures of a job with one seed, by name
Statistic = Literal["mean", "median"]
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
}


class Measure(ABC):
    """A number of a cell, computed from the results of jobs."""

    @property
    @abstractmethod
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that it needs."""

    @abstractmethod
    def of(self, jobs: Mapping[Job, Job]) -> Measure:
        """The same of other jobs, each in the place of one of these."""

    @abstractmethod
    def value(self, results: Mapping[Job, Result]) -> float | None:
        """The number for one seed; None where a job has none."""


@dataclass(frozen=True)
class Value(Measure):
    """A measure of a job."""

    job: Job
    name: str

    @property
    def jobs(self) -> tuple[Job, ...]:
        """That job."""
        return (self.job,)

    def of(self, jobs: Mapping[Job, Job]) -> Value:
        """The same measure of another job."""
        return Value(jobs[self.job], self.name)

    def value(self, results: Mapping[Job, Result]) -> float | None:
        """Its measure."""
        return results[self.job].get(self.name)


@dataclass(frozen=True)
class Ratio(Measure):
    """A measure of a job, divided by that of another."""

    job: Job
    over: Job
    name: str

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Both jobs."""
        return self.job, self.over

    def of(self, jobs: Mapping[Job, Job]) -> Ratio:
        """The same ratio of other jobs."""
        return Ratio(jobs[self.job], jobs[self.over], self.name)

    def value(self, results: Mapping[Job, Result]) -> float | None:
        """Their quotient."""
        ours, theirs = (results[job].get(self.name) for job in self.jobs)
        return None if ours is None or not theirs else ours / theirs


@dataclass(frozen=True)
class Largest(Measure):
    """The largest of several numbers."""

    measures: tuple[Measure, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All their jobs."""
        return tuple(dict.fromkeys(job for measure in self.measures for job in measure.jobs))

    def of(self, jobs: Mapping[Job, Job]) -> Largest:
        """The largest of the same of other jobs."""
        return Largest(tuple(measure.of(jobs) for measure in self.measures))

    def value(self, results: Mapping[Job, Result]) -> float | None:
        """The largest that is known."""
        known = [value for measure in self.measures if (value := measure.value(results)) is not None]
        return max(known, default=None)


@dataclass(frozen=True)
class Cell:
    """A place in a table, and how our number for it is made."""

    row: str
    column: str
    measure: Measure

    @property
    def name(self) -> str:
        """Row and column."""
        return f"{self.row} / {self.column}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or picture of a paper, and the jobs that measure it again.

    Args:
        name: The name of the table in `figures.toml`.
        what: What is measured, in a few words.
        cells: The places of the table, in its order.
        seeds: The number of runs the paper has of each.
        statistic: How it sums them up.
        curve: A measure of the jobs that is a list of numbers over epochs, which is drawn as a line for each cell;
            `{column}` stands for the column.
        axis: What such a line shows.
        quick: Patterns of the cells that `--quick` measures; all by default.
    """

    name: str
    what: str
    cells: tuple[Cell, ...]
    seeds: int = 1
    statistic: Statistic = "mean"
    curve: str = ""
    axis: str = "test accuracy, %"
    quick: tuple[str, ...] = ("*",)

    @property
    def table(self) -> PaperTable:
        """The paper's numbers."""
        return tables()[self.name]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, each once, in the order of the cells."""
        return jobs_of(self.cells)


def jobs_of(cells: Sequence[Cell]) -> tuple[Job, ...]:
    """The jobs of some cells, each once."""
    return tuple(dict.fromkeys(job for cell in cells for job in cell.measure.jobs))


def grid(table: PaperTable, make: Callable[[str, str], Job], *, name: str | Callable[[str], str]) -> tuple[Cell, ...]:
    """A cell for every number of a table, whose job depends on its row and column.

    Args:
        table: The paper's table.
        make: The job of a row and a column.
        name: The measure of the job: always the same, or that of a column.
    """
    named = name if callable(name) else lambda column: name
    return tuple(Cell(row, column, Value(make(row, column), named(column))) for row, column in table.cells())
