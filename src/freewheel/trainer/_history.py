"""What a training run leaves behind: a record for each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from freewheel._numbers import read
from freewheel.racing import RaceTimes as RaceTimes
from freewheel.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a network scored on a loader.

    Args:
        loss: The mean over the samples.
        metric: The first metric; None where there is none.
        samples: How many there were.
        metrics: All metrics by name.
    """

    loss: float
    metric: float | None
    samples: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerUpdates:
    """A layer under a method that races.

    Args:
        started: Updates begun.
        finished: Updates made.
        staleness: The mean number of changes of the layer between a forward and the update with its gradient.
        stalest: The largest.
        wait: The mean time from a complete gradient to the update with it, in the unit of `Epoch.race`.
    """

    started: int
    finished: int
    staleness: float
    stalest: int = 0
    wait: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch: the training loss, the score at its end, and how the stages were used.

    Args:
        epoch: Its number, from 0.
        batches: Trained until its end, those of earlier epochs included.
        samples: Those of this epoch.
        loss: The mean training loss.
        validation: The score at its end, with `fit(validate=...)`.
        seconds: From the end of the epoch before, scoring included; the stages work on meanwhile.
        images_per_second: Samples over these seconds.
        busy: Of each stage, or of the workers of a race in the mean: the share of this time spent computing. Empty if
            one is on a GPU, which computes while the host only launches; a trace knows (`Trace.shares`).
        staleness: Of each stage: the mean number of updates between a batch's forward and the update with it.
        complete: False if it was broken off.
        layers: What a method that races knows of each layer.
        race: The times of a method that races.
    """

    epoch: int
    batches: int
    samples: int
    loss: float
    validation: Score | None
    seconds: float
    images_per_second: float
    busy: tuple[float, ...]
    staleness: tuple[float, ...]
    complete: bool = True
    layers: Mapping[str, LayerUpdates] = field(default_factory=dict)
    race: RaceTimes | None = None


class Reached(NamedTuple):
    """When a target was reached: after this many epochs, and seconds of training with the scoring between epochs."""

    epochs: int
    seconds: float


@dataclass
class History:
    """The epochs of a run, in order.

    Args:
        epochs: A record of each.
        interrupted: Whether Ctrl-C ended the training.
        stopped: Whether a callback did.
        trace: What the stages did and when, with `fit(trace=True)`.

    Example:
        >>> History().epochs, History().interrupted
        ([], False)
    """

    epochs: list[Epoch] = field(default_factory=list)
    interrupted: bool = False
    stopped: bool = False
    trace: Trace | None = field(default=None, repr=False, compare=False)

    @property
    def losses(self) -> list[float]:
        """The training loss of each epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def metrics(self) -> list[float | None]:
        """The metric at the end of each epoch, where it was measured."""
        return [None if epoch.validation is None else epoch.validation.metric for epoch in self.epochs]

    @property
    def images_per_second(self) -> float | None:
        """Samples per second: the median over the complete epochs, if there are any."""
        rates = [epoch.images_per_second for epoch in self.epochs if epoch.complete]
        return median(rates) if rates else None

    def time_to(self, target: float) -> Reached | None:
        """When the metric was first as large as this at the end of an epoch; None if it never was."""
        for count, metric in enumerate(self.metrics, start=1):
            if metric is not None and metric >= target:
                return Reached(count, sum(epoch.seconds for epoch in self.epochs[:count]))
        return None

    @property
    def batches(self) -> int:
        """How many batches every stage was updated with."""
        return self.epochs[-1].batches if self.epochs else 0

    def as_dict(self) -> dict[str, Any]:
        """The same as plain numbers, lists and dicts, ready for JSON; a trace has a file of its own."""
        found = asdict(replace(self, trace=None))
        del found["trace"]
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> History:
        """The history that was written so.

        Example:
            >>> History.from_dict(History(interrupted=True).as_dict())
            History(epochs=[], interrupted=True, stopped=False)
        """

        def epoch(record: dict[str, Any]) -> Epoch:
            score = record["validation"]
            given = {"validation": None if score is None else Score(**score)}
            lists = {name: tuple(record[name]) for name in ("busy", "staleness")}
            layers = {name: LayerUpdates(**counts) for name, counts in record.get("layers", {}).items()}
            race = record.get("race")
            times = None if race is None else RaceTimes(**race)
            return Epoch(**{**record, **given, **lists, "layers": layers, "race": times})

        return cls(**{**values, "epochs": [epoch(record) for record in values["epochs"]]})


def mean_loss(losses: Iterable[tuple[Any, int]]) -> tuple[float, int]:
    """The mean loss over samples, from (loss, size) pairs, and their number."""
    pairs, total, samples = list(losses), 0.0, 0
    for loss, (_, size) in zip(read([loss for loss, _ in pairs]), pairs):
        total += loss * size
        samples += size
    return (total / samples if samples else float("nan")), samples
