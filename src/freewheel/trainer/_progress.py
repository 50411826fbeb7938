"""A progress bar on standard error: rich's where it is installed, a plain line otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from freewheel.trainer._history import Epoch


class ProgressBar:
    """Count batches, those `done` before included, and show the last epoch's record beside them.

    The length of the loader, where it has one, gives the total. By default it is shown where standard error is a
    terminal. A listener is told the count and the total.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        epochs: int,
        max_steps: int | None = None,
        *,
        done: int = 0,
        enabled: bool | None,
        listener: Callable[[int, int | None], object] | None = None,
    ) -> None:
        self._listener = listener
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        try:
            self._total: int | None = len(loader) * epochs  # pyright: ignore[reportArgumentType]
            self._total = min(self._total, max_steps or self._total)
        except TypeError:
            self._total = max_steps
        self._epochs = epochs if max_steps is None else None
        self._count, self._text = done, self._title(0)
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        if self._enabled:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            except ImportError:
                return self
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._text, total=self._total, completed=self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._enabled:
            sys.stderr.write("\n")

    def advance(self) -> None:
        """Count one more batch."""
        self._count += 1
        if self._listener is not None:
            self._listener(self._count, self._total)
        if self._bar is not None:
            self._bar.advance(self._task)
        elif self._enabled and self._count % 10 == 0:
            sys.stderr.write(f"\r{self._text}  batch {self._count}/{self._total or '?'} ")
            sys.stderr.flush()

    def epoch(self, record: Epoch) -> None:
        """Show the record of an epoch."""
        self._text = f"{self._title(record.epoch + 1)}  loss {record.loss:.4f}"
        if record.validation is not None and record.validation.metric is not None:
            self._text += f"  metric {record.validation.metric:.4f}"
        if self._bar is not None:
            self._bar.update(self._task, description=self._text)

    def _title(self, epoch: int) -> str:
        return f"epoch {epoch + 1}" if self._epochs is None else f"epoch {min(epoch + 1, self._epochs)}/{self._epochs}"
