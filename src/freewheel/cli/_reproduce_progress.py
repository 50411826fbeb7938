"""The progress of `freewheel reproduce`: a bar on a terminal, a line for each job elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from freewheel.cli._output import print_line
from freewheel.reproduce import Watcher


class Lines(Watcher):
    """A line for each job that has ended."""

    def begin(self, done: int, total: int) -> None:
        """Remember the count, and say what is done."""
        self._done, self._total = done, total
        if done:
            print_line(f"{done} of {total} jobs were done before", error=True)

    def job(self, title: str) -> None:
        """Remember it."""
        self._title = title

    def end(self, outcome: str) -> None:
        """Print a line."""
        self._done += 1
        print_line(f"{self._done} of {self._total}: {self._title}: {outcome}", error=True)


class Bar(Lines):
    """A bar for all jobs, with the current one and what it does below."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def begin(self, done: int, total: int) -> None:
        """Begin the bar."""
        super().begin(done, total)
        self._all = self._bar.add_task("jobs", total=total, completed=done, text="")

    def job(self, title: str) -> None:
        """Show it."""
        super().job(title)
        self._bar.update(self._all, text=title)

    def tell(self, text: str) -> None:
        """Show it beside the title."""
        self._bar.update(self._all, text=f"{self._title}: {text}")

    def end(self, outcome: str) -> None:
        """Print a line above the bar."""
        super().end(outcome)
        self._bar.advance(self._all)


@contextmanager
def progress() -> Iterator[Watcher]:
    """What shows the progress on standard error."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    columns: tuple[Any, ...] = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Bar(bar)
