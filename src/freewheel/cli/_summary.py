"""The summary of a training run: in words, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from freewheel.cli._end import describe_times
from freewheel.cli._facts import summary_facts
from freewheel.cli._job import Job
from freewheel.cli._one_core import OneCore
from freewheel.cli._output import new_table, plural, print_line, print_table
from freewheel.trainer import Epoch, History, RaceTimes, Score

MOST_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run that has ended, or was interrupted."""

    job: Job
    history: History
    score: Score  # on the test samples
    one_core: OneCore | None

    @property
    def rates(self) -> list[float]:
        """Samples per second of each complete epoch."""
        return [epoch.images_per_second for epoch in self.history.epochs if epoch.complete]

    @property
    def images_per_second(self) -> float | None:
        """The median over the complete epochs, if there are any."""
        return self.history.images_per_second

    @property
    def speedup(self) -> float | None:
        """Speed relative to plain PyTorch on one core; both include the evaluation."""
        if self.one_core is None or self.images_per_second is None:
            return None
        return self.images_per_second / self.one_core.images_per_second

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended it."""
        return self.history.interrupted

    def print_tables(self) -> None:
        """Print a table with a row for each epoch, or for some of many."""
        scored = "test" if self.job.data.validation is None else "held-out"
        numbers = ("epoch", "loss", f"{scored} loss", f"{scored} accuracy", f"{self.job.data.things}/s")
        table = new_table(*numbers, "busy", "staleness", right=numbers)
        epochs = self.history.epochs
        rows = pick(len(epochs), MOST_ROWS)
        rates = dict(enumerate(self.rates))
        for row in rows:
            table.add_row(*_epoch_cells(epochs[row], rates.get(row)))
        print_table(table)
        if len(rows) < len(epochs):
            print_line(f"{len(rows)} of {len(epochs)} epochs; --json FILE writes all\n")
        if epochs and epochs[-1].layers:
            print_line(f"staleness by layer in the last epoch: {_layer_staleness(epochs[-1])}")
            if epochs[-1].race is not None:
                print_line(f"times of the last epoch: {_race_times(epochs[-1].race)}")
            print_line()

    def lines(self) -> Iterator[str]:
        """The closing lines."""
        done = sum(epoch.complete for epoch in self.history.epochs)
        after = f"after {plural(done, 'epoch')}"
        if self.history.interrupted:
            after += f" of {self.job.settings.options.epochs}, interrupted at batch {self.history.batches}"
        things = self.job.data.things
        samples, loss = f"{self.score.samples:,} {things}", f"loss {self.score.loss:.4f}"
        if self.score.metric is None:
            yield f"test {loss} ({samples}) {after}"
        else:
            yield f"test accuracy {self.score.metric:.2%} ({loss}, {samples}) {after}"
        yield from describe_times(self.job.settings.options, self.history)
        if self.images_per_second is None:
            return
        speed = f"{self.images_per_second:,.0f} {things}/s"
        if self.one_core is not None and self.speedup is not None:
            baseline = f"{self.one_core.images_per_second:,.0f}"
            what = "backpropagation in plain PyTorch" if self.job.settings.forward else "plain PyTorch"
            speed += f": {self.speedup:.2f} times {what} on one core ({baseline} {things}/s)"
        yield speed

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            **summary_facts(self.job),
            "time_to_target": self.time_to_target,
            "history": self.history.as_dict(),
            "score": asdict(self.score),
            "images_per_second": self.images_per_second,
            "one_core": self.baseline,
            "speedup": self.speedup,
        }

    def figures(self) -> dict[str, Any]:
        """The final figures, as the folder of the run has them."""
        return {
            "score": self.score,
            "time_to_target": self.time_to_target,
            "one_core": self.baseline,
            "speedup": self.speedup,
        }

    @property
    def baseline(self) -> dict[str, Any] | None:
        """What plain PyTorch reaches on one core, as plain data."""
        return None if self.one_core is None else self.one_core.as_dict()

    @property
    def time_to_target(self) -> dict[str, Any] | None:
        """When `--target` was reached, as plain data."""
        target = self.job.settings.options.target
        reached = self.history.time_to(target) if target else None
        return None if reached is None else reached._asdict()


def pick(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers below `count`, evenly spread, including the first and the last.

    Example:
        >>> pick(3, 12), pick(100, 5)
        ([0, 1, 2], [0, 25, 50, 74, 99])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _layer_staleness(epoch: Epoch) -> str:
    return ", ".join(f"{name} {layer.staleness:.2f}" for name, layer in epoch.layers.items())


def _race_times(race: RaceTimes) -> str:
    def written(value: float) -> str:
        return f"{1e3 * value:.2f} ms" if race.unit == "s" else f"{value:.1f} {race.unit}"

    sending = f", sending {written(race.sending)}" if race.sending else ""
    return (
        f"λ {race.speedup:.2f} (without waiting {race.ideal_speedup:.2f}), β {race.ratio:.2f} "
        f"(forward {written(race.forward)}, backward {written(race.backward)}{sending}), "
        f"τ {written(race.wait)} (block updates about {written(race.block_wait)})"
    )


def _epoch_cells(epoch: Epoch, rate: float | None) -> list[str]:
    score = epoch.validation
    return [
        f"{epoch.epoch + 1}" if epoch.complete else f"part of {epoch.epoch + 1}",
        f"{epoch.loss:.4f}",
        "-" if score is None else f"{score.loss:.4f}",
        "-" if score is None or score.metric is None else f"{score.metric:.2%}",
        "-" if rate is None else f"{rate:,.0f}",
        " ".join(f"{share:.0%}" for share in epoch.busy) or "-",
        " ".join(f"{late:.1f}" for late in epoch.staleness),
    ]
