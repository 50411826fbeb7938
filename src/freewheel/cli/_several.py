"""The summary of several runs: in words, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from freewheel.cli._end import run_names, target_of
from freewheel.cli._job import Job
from freewheel.cli._output import new_table, print_table
from freewheel.cli._train_options import TrainOptions
from freewheel.recipes import RECIPES, Statistics
from freewheel.trainer import History, Score


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run with one of several step sizes; it has no history if its loss became infinite."""

    lr: float
    history: History | None

    @property
    def score(self) -> Score | None:
        """The score on held-out samples after the last epoch."""
        done = [epoch for epoch in self.history.epochs if epoch.complete] if self.history is not None else []
        return done[-1].validation if done else None

    @property
    def rank(self) -> float:
        """The larger, the better."""
        if self.score is None:
            return float("-inf")
        return -self.score.loss if self.score.metric is None else self.score.metric


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """A run with one of several seeds, and its score on the test samples."""

    seed: int
    history: History
    score: Score
    record: dict[str, Any]  # everything, as plain data

    @property
    def best(self) -> float | None:
        """The best metric of an epoch."""
        return max((metric for metric in self.history.metrics if metric is not None), default=None)


@dataclass(kw_only=True)
class SeveralRuns:
    """The runs that have ended."""

    options: TrainOptions  # of all of them
    trials: list[Trial] = field(default_factory=list)
    runs: list[SeedRun] = field(default_factory=list)
    job: Job | None = None  # the run whose network `--save` writes
    interrupted: bool = False

    @property
    def best(self) -> Trial:
        """The step size with the best score; the first of equals."""
        return max(self.trials, key=lambda trial: trial.rank)

    @property
    def _scored(self) -> str:
        return "held-out" if self.options.validation else "test"

    def statistics(self) -> dict[str, Statistics]:
        """The statistics over the seeds, by what they are of."""
        target = target_of(self.options)
        reached = [None if target is None else run.history.time_to(target) for run in self.runs]
        values: dict[str, list[float | None]] = {
            "test accuracy": [run.score.metric for run in self.runs],
            "test loss": [run.score.loss for run in self.runs],
            self._best_name: [run.best for run in self.runs],
            f"epochs to {target or 0:.2%}": [when and when.epochs for when in reached],
            f"seconds to {target or 0:.2%}": [when and when.seconds for when in reached],
        }
        known = {name: [value for value in each if value is not None] for name, each in values.items()}
        return {name: Statistics.of(each) for name, each in known.items() if each and len(each) == len(self.runs)}

    @property
    def _best_name(self) -> str:
        return f"best {self._scored} accuracy of an epoch"

    def print_tables(self) -> None:
        """Print a table of the step sizes and one of the seeds."""
        if self.trials:
            numbers = ("lr", "epochs", f"{self._scored} loss", f"{self._scored} accuracy")
            table = new_table(*numbers, "", right=numbers)
            for trial in self.trials:
                epochs = "-" if trial.history is None else str(len(trial.history.epochs))
                note = "diverged" if trial.history is None else "best" if trial is self.best else ""
                table.add_row(f"{trial.lr:g}", epochs, *_cells(trial.score), note)
            print_table(table)
        if len(self.runs) > 1:
            numbers = ("seed", "epochs", "test loss", "test accuracy", self._best_name, "seconds")
            table = new_table(*numbers, right=numbers)
            for run in self.runs:
                best = "-" if run.best is None else f"{run.best:.2%}"
                seconds = f"{sum(epoch.seconds for epoch in run.history.epochs):,.1f}"
                table.add_row(str(run.seed), str(len(run.history.epochs)), *_cells(run.score), best, seconds)
            print_table(table)

    def lines(self) -> Iterator[str]:
        """The closing lines."""
        if self.interrupted:
            done = len(self.trials) + len(self.runs) - bool(self.trials and self.runs)  # the best trial is a run, too
            yield f"interrupted: {done} of {len(run_names(self.options))} runs are complete"
        if self.runs and self.trials:
            yield f"lr {self.best.lr:g} has the best score on held-out samples"
        for name, found in self.statistics().items():
            yield f"{name}: {_described(name, found)}"
        if self.runs and not self.interrupted:
            yield from self._as_in_paper()

    def _as_in_paper(self) -> Iterator[str]:
        """The number that the paper of the recipe reports."""
        if self.options.recipe is None:
            return
        recipe, statistics = RECIPES[self.options.recipe], self.statistics()
        name = "test accuracy" if recipe.epoch == "last" else self._best_name
        if name in statistics and (recipe.epoch == "last" or not self.options.validation):
            value = statistics[name].over(recipe.over)
            shown = f"error {1 - value:.2%}" if recipe.metric == "error" else f"accuracy {value:.2%}"
            over = f"{recipe.over} " if len(self.runs) > 1 else ""
            yield f"reported as in the paper: {over}test {shown}, {recipe.epoch} epoch"

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "arguments": asdict(self.options),
            "step_sizes": [
                {"lr": trial.lr, "history": None if trial.history is None else trial.history.as_dict()}
                for trial in self.trials
            ],
            "runs": [run.record for run in self.runs],
            "statistics": {name: asdict(found) for name, found in self.statistics().items()},
            "interrupted": self.interrupted,
        }


def _cells(score: Score | None) -> tuple[str, str]:
    """The loss and the accuracy."""
    if score is None:
        return "-", "-"
    return f"{score.loss:.4f}", "-" if score.metric is None else f"{score.metric:.2%}"


def _described(name: str, found: Statistics) -> str:
    """Statistics in words.

    Example:
        >>> _described("test accuracy", Statistics.of([0.9, 0.92, 0.97]))
        'median 92.00%, mean 93.00% ± 3.61%, 90.00% to 97.00%'
        >>> _described("seconds", Statistics.of([2.0]))
        '2.0'
    """
    form = "{:.2%}" if "accuracy" in name else "{:.4f}" if "loss" in name else "{:,.1f}"
    median, mean, least, most = (form.format(each) for each in (found.median, found.mean, found.least, found.most))
    if found.deviation is None:
        return median
    return f"median {median}, mean {mean} ± {form.format(found.deviation)}, {least} to {most}"
