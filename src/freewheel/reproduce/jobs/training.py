"""A training: accuracy after every epoch, and the time it took."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from freewheel.checkpoint import find
from freewheel.data import Data
from freewheel.methods import Method
from freewheel.models import classifier
from freewheel.reproduce._files import write_json
from freewheel.reproduce._networks import DIGITS, DIGITS_NET, ROWS, ROWS_NET, Net, Source, held_out
from freewheel.reproduce._recipe import Recipe
from freewheel.reproduce.jobs._job import Context, Job, in_words
from freewheel.runtime import StageError
from freewheel.tangents import Transfer
from freewheel.trainer import EarlyStopping, EpochEnd, History, Trainer

QUICK_EPOCHS = 3
QUICK_TARGET = 80.0  # percent


@dataclass(frozen=True, kw_only=True)
class Training(Job):
    """A training of a network by a method.

    Args:
        net: The network.
        source: The data.
        recipe: Optimizer, step sizes and epochs.
        method: The method.
        k: The number of stages.
        choose: Step sizes of which the best on a held-out part of the training data is taken; none for the recipe's.
        transfer: The schedule by which forward gradients train a pretrained network; its classifier is filled in.
        target: A test accuracy, in percent, whose first time is measured.
    """

    net: Net
    source: Source
    recipe: Recipe
    method: Method
    k: int = 1
    choose: tuple[float, ...] = ()
    transfer: Transfer | None = None
    target: float | None = None

    @property
    def title(self) -> str:
        """Network, data, method and stages."""
        stages = f", K={self.k}" if self.k > 1 else ""
        return f"{self.net.title} on {self.source.title}, {in_words(self.method)}{stages}"

    @property
    def epochs(self) -> int:
        """Those of all step sizes it chooses from."""
        return self.recipe.epochs * max(1, len(self.choose))

    def prepared(self, context: Context) -> tuple[Training, tuple[str, ...]]:
        """With the pretrained weights that are there; refuses missing data and weights."""
        self.source.check(context.data_root)
        found = self.net.found(context.data_root)
        if found is None:
            return self, ()
        first = self.net.pretrained[0]
        words = (
            (f"{found.model} for {self.net.title}, whose weights/{first.file} is missing",) if found != first else ()
        )
        return replace(self, net=replace(self.net, model=found.model, pretrained=(found,))), words

    def quick(self) -> tuple[Training, tuple[str, ...]]:
        """A few epochs on data that ship with a dependency, with a small network."""
        rows = self.source.name == "imdb"
        source, net = (ROWS, ROWS_NET) if rows else (DIGITS, self.net if self.net.small else DIGITS_NET)
        epochs = min(QUICK_EPOCHS, self.recipe.epochs)
        recipe = replace(self.recipe.scaled(epochs), batch_size=64, patience=0)
        transfer = self.transfer and replace(self.transfer, warmup=1, ramp=1)
        choose, target = self.choose[-2:], None if self.target is None else QUICK_TARGET
        replaced = [
            f"{source.title} for {self.source.title}",
            f"{net.title} for {self.net.title}" if net != self.net else "",
            f"{recipe.epochs} epochs for {self.recipe.epochs}",
            f"batches of {recipe.batch_size} for {self.recipe.batch_size}" if self.recipe.batch_size != 64 else "",
            f"step sizes {', '.join(map(str, choose))} of {', '.join(map(str, self.choose))}" if choose else "",
            "no pretrained weights" if self.net.pretrained else "",
            f"{target:g} % for {self.target:g} % as the accuracy to reach" if target and self.target else "",
        ]
        small = replace(self, net=net, source=source, recipe=recipe, choose=choose, transfer=transfer, target=target)
        return small, tuple(filter(None, replaced))

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """Train, with every step size it chooses from."""
        if not self.choose:
            return _Attempt(self, context, seed, context.folder).run()
        found: dict[float, dict[str, Any]] = {}
        for lr in self.choose:
            folder = None if context.folder is None else context.folder / f"lr-{lr:g}"
            attempt = replace(self, recipe=replace(self.recipe, lr=lr), choose=())
            within = replace(context, tell=lambda text, lr=lr: context.tell(f"step size {lr:g}, {text}"))
            found[lr] = _Attempt(attempt, within, seed, folder, holds_out=True).run()
        best = max(found, key=lambda lr: found[lr]["validation"])
        return {**found[best], "lr": best, "validations": {str(lr): each["validation"] for lr, each in found.items()}}


class _Attempt:
    """One training with one step size, which goes on from its last checkpoint."""

    def __init__(
        self, job: Training, context: Context, seed: int, folder: Path | None, *, holds_out: bool = False
    ) -> None:
        self._job, self._context, self._seed, self._folder, self._holds_out = job, context, seed, folder, holds_out

    def run(self) -> dict[str, Any]:
        """The measures; those of an attempt that has ended are read from its folder."""
        done = None if self._folder is None else self._folder / "done.json"
        if done is not None and done.is_file():
            return json.loads(done.read_text(encoding="utf-8"))
        found = self._train()
        if done is not None:
            write_json(done, found)
            shutil.rmtree(done.parent / "checkpoints", ignore_errors=True)
        return found

    def _train(self) -> dict[str, Any]:
        job, context = self._job, self._context
        recipe = job.recipe
        loaded = job.source.load(context.data_root, batch_size=recipe.batch_size, seed=self._seed)
        loaded = loaded if context.device == "cpu" else loaded.to(context.device)
        train, validation = held_out(loaded.train, loaded.test) if self._holds_out else (loaded.train, None)
        trainer = self._trainer(loaded, len(train))
        stop = [EarlyStopping(monitor="accuracy", patience=recipe.patience)] if recipe.patience else []
        try:
            history = self._ended(trainer) or trainer.fit(
                train,
                recipe.epochs,
                validate=loaded.test,
                callbacks=[self._tell, *stop],
                progress=False,
                save_to=self._checkpoints,
            )
        except (FloatingPointError, StageError) as error:
            if "loss" not in str(error):
                raise
            return {"validation": 0.0, "diverged": True}
        if history.interrupted:
            raise KeyboardInterrupt
        found = measures(history, job.target)
        if validation is not None:
            found["validation"] = 100 * (trainer.evaluate(validation).metric or 0.0)
        return {**found, "runtime": str(trainer.runtime.name)}

    def _ended(self, trainer: Trainer) -> History | None:
        """The history of a training that had ended before it was interrupted."""
        if trainer.resumed_from is None or trainer.unfinished is not None:
            return None
        history = find(trainer.resumed_from).manifest.history
        assert history is not None
        return History.from_dict(history)

    @property
    def _checkpoints(self) -> Path | None:
        """Where checkpoints go; a race cannot be resumed in the middle of a fit."""
        return self._folder / "checkpoints" if self._folder is not None and self._job.method.planned else None

    def _trainer(self, loaded: Data, batches: int) -> Trainer:
        job, context, folder = self._job, self._context, self._checkpoints
        model = job.net.build(context.data_root, self._shapes(loaded), self._seed)
        method = job.method
        if job.transfer is not None:
            method = replace(method, scale=replace(job.transfer, classifier=classifier(model)))  # pyright: ignore[reportCallIssue]
        on_gpu = context.device != "cpu"
        options: dict[str, Any] = {
            "method": method,
            "loss": F.cross_entropy,
            "optimizer": job.recipe.factory(),
            "scheduler": job.recipe.schedule(batches),
            "runtime": "auto" if on_gpu and method.planned else "threads",
            "compile": context.compile and method.planned,
            "seed": self._seed,
        }
        stages = job.net.cut(model, context.data_root, job.k, context.device)
        if folder is not None and folder.is_dir() and any(folder.glob("checkpoint-*")):
            return Trainer.resume(folder, stages, **options)
        return Trainer(stages, **options)

    @staticmethod
    def _shapes(loaded: Data) -> dict[str, Any]:
        embedded = loaded.name == "imdb"
        return {**loaded.shapes, "vocabulary": len(loaded.vocabulary)} if embedded else loaded.shapes

    def _tell(self, end: EpochEnd) -> None:
        score = end.record.validation
        accuracy = "" if score is None or score.metric is None else f", {100 * score.metric:.2f} %"
        self._context.tell(f"epoch {end.record.epoch + 1} of {self._job.recipe.epochs}{accuracy}")


def measures(history: History, target: float | None) -> dict[str, Any]:
    """What a table may have of a training; accuracies are in percent, seconds include the scoring."""
    curve = [100 * (metric or 0.0) for metric in history.metrics]
    clock = list(accumulate(epoch.seconds for epoch in history.epochs))
    best = max(range(len(curve)), key=curve.__getitem__)
    reached = next((i for i, value in enumerate(curve) if target is not None and value >= target), None)
    return {
        "best": curve[best],
        "last": curve[-1],
        "error": 100 - curve[-1],
        "epochs": best + 1,
        "seconds": clock[best],
        "target_epochs": None if reached is None else reached + 1,
        "target_seconds": None if reached is None else clock[reached],
        "images/s": statistics.median(epoch.images_per_second for epoch in history.epochs),
        "curve": curve,
        "errors": [100 - value for value in curve],
        "clock": clock,
        "losses": history.losses,
    }
