"""The progress of `freewheel reproduce`: a bar on a terminal, a line for each job elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from freewheel.cli._output import print_line
from freewheel.reproduce import Outcome, Task, Watcher


class Lines(Watcher):
    """A line for each job that has ended."""

    def begin(self, done: int, total: int) -> None:
        """Remember the count, and say what is done."""
        self._done, self._total = done, total
        if done:
            print_line(f"{done} of {total} jobs were done before", error=True)

    def end(self, task: Task, outcome: Outcome) -> None:
        """Print a line."""
        self._done += 1
        print_line(f"{self._done} of {self._total}: {task.title}: {outcome}", error=True)


class Bars(Lines):
    """A bar for all jobs, and below it a line for each of those that run."""

    def __init__(self) -> None:
        self._all = Progress(BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        self._each = Progress(TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        self._lines: dict[Task, TaskID] = {}
        self.shown = Group(self._all, self._each)

    def begin(self, done: int, total: int) -> None:
        """Begin the bar."""
        super().begin(done, total)
        self._bar = self._all.add_task("jobs", total=total, completed=done)

    def job(self, task: Task) -> None:
        """Begin its line."""
        self._lines[task] = self._each.add_task(task.title)

    def tell(self, task: Task, text: str) -> None:
        """Show it beside the title."""
        self._each.update(self._lines[task], description=f"{task.title}: {text}")

    def end(self, task: Task, outcome: Outcome) -> None:
        """Print a line above the bar."""
        super().end(task, outcome)
        self._each.remove_task(self._lines.pop(task))
        self._all.advance(self._bar)


@contextmanager
def progress() -> Iterator[Watcher]:
    """What shows the progress on standard error."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    bars = Bars()
    with Live(bars.shown, console=Console(stderr=True), transient=True):
        yield bars
