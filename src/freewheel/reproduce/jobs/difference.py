"""How far the gradients of a method are from those of backpropagation, while it trains."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from freewheel._files import write_json
from freewheel.data import Data
from freewheel.reproduce.jobs._job import Context, Job
from freewheel.reproduce.jobs.training import Attempt, Training
from freewheel.trainer import Callback, EpochEnd, Trainer, gradient_difference

MEASURED = 4  # batches after those that fill the pipeline


@dataclass(frozen=True, kw_only=True)
class Difference(Job):
    """The difference after every epoch of a training, by `fw.gradient_difference` on its first batches.

    Args:
        training: The training.
    """

    training: Training

    @property
    def title(self) -> str:
        """That of the training."""
        return f"gradient difference, {self.training.title}"

    @property
    def epochs(self) -> int:
        """Those of the training."""
        return self.training.epochs

    def prepared(self, context: Context) -> tuple[Difference, tuple[str, ...]]:
        """The training as it can run there."""
        training, words = self.training.prepared(context)
        return replace(self, training=training), words

    def quick(self) -> tuple[Difference, tuple[str, ...]]:
        """A scaled-down training."""
        training, words = self.training.quick()
        return replace(self, training=training), words

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """The norm of the difference over the number of parameters, for each stage: last, and after every epoch."""
        log = _Log(context.folder)
        found = Attempt(self.training, context, seed, context.folder, log.watch).run()
        blocks = zip(*log.epochs)
        for k, curve in enumerate(blocks):
            found |= {f"block {k}": curve[-1], f"block {k} curve": list(curve)}
        return found


class _Log:
    """The differences after each epoch, on disk, so that they survive an interruption."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "differences.json"
        known = self._path is not None and self._path.is_file()
        self.epochs: list[list[float]] = json.loads(self._path.read_text(encoding="utf-8")) if known else []  # pyright: ignore

    def watch(self, trainer: Trainer, data: Data) -> Callback:
        """A callback that measures at the end of an epoch."""
        assert trainer.plan is not None
        batches = list(islice(data.train.epoch(0), max(trainer.plan.delays) + MEASURED))
        sizes = [sum(p.numel() for p in stage.parameters()) for stage in trainer.stages]

        def measure(end: EpochEnd) -> None:
            found = gradient_difference(trainer, batches, end)
            row = [each.difference / size for each, size in zip(found, sizes)]
            self.epochs[end.record.epoch :] = [row]
            if self._path is not None:
                write_json(self._path, self.epochs)

        return measure
