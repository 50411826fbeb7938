"""A training: accuracy after every epoch, and the time it took."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from freewheel._files import write_json
from freewheel.checkpoint import Manifest, find, finished
from freewheel.data import Data
from freewheel.methods import Method
from freewheel.models import classifier
from freewheel.recipes import Recipe
from freewheel.reproduce._networks import DIGITS, DIGITS_NET, ROWS, ROWS_NET, Net, Source
from freewheel.reproduce.jobs._job import Context, Job, in_words, with_scale
from freewheel.runtime import StageError
from freewheel.trainer import Callback, EpochEnd, History, Trainer

# of a scaled-down training:
QUICK_EPOCHS = 4
QUICK_BATCH = 64
QUICK_STEP_SIZES = 2
QUICK_TARGET = 0.5
PLACES = 4  # of percentages: one of 50,000 images is 0.002 %
Watch = Callable[[Trainer, Data], Callback]


@dataclass(frozen=True, kw_only=True)
class Training(Job):
    """A training of a network by a method.

    Args:
        net: The network.
        source: The data.
        recipe: Optimizer, step sizes and epochs. Of several step sizes the best on held-out samples is taken; a
            schedule of transfer gets the name of the network's classifier.
        method: The method.
        k: The number of stages.
    """

    net: Net
    source: Source
    recipe: Recipe
    method: Method
    k: int = 1

    @property
    def title(self) -> str:
        """Network, data, method and stages."""
        stages = f", K={self.k}" if self.k > 1 else ""
        transfer = self.recipe.transfer
        tuned = "" if transfer is None else f", transfer to α={transfer.peak:g}"
        return f"{self.net.title} on {self.source.title}, {in_words(self.method)}{stages}{tuned}"

    @property
    def epochs(self) -> int:
        """Those of all step sizes it chooses from."""
        return self.recipe.epochs * max(1, len(self.recipe.lr_grid))

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
        rows, full = self.source.name == "imdb", self.recipe
        source, net = (ROWS, ROWS_NET) if rows else (DIGITS, self.net if self.net.small else DIGITS_NET)
        recipe = replace(
            full.scaled(min(QUICK_EPOCHS, full.epochs)),
            batch_size=QUICK_BATCH,
            early_stopping=0,
            lr_grid=full.lr_grid[-QUICK_STEP_SIZES:],
            target=None if full.target is None else QUICK_TARGET,
        )
        replaced = [
            f"{source.title} for {self.source.title}",
            f"{net.title} for {self.net.title}" if net != self.net else "",
            f"{recipe.epochs} epochs for {full.epochs}",
            f"batches of {recipe.batch_size} for {full.batch_size}" if full.batch_size != QUICK_BATCH else "",
            f"step sizes {_listed(recipe.lr_grid)} of {_listed(full.lr_grid)}" if full.lr_grid else "",
            "random weights for pretrained ones" if self.net.pretrained else "",
            f"{100 * QUICK_TARGET:g} % for {100 * full.target:g} % as the accuracy to reach" if full.target else "",
        ]
        return replace(self, net=net, source=source, recipe=recipe), tuple(filter(None, replaced))

    def run(self, context: Context, seed: int) -> dict[str, Any]:
        """Train, with every step size it chooses from."""
        recipe = self.recipe
        if not recipe.lr_grid:
            return Attempt(self, context, seed, context.folder).run()
        found: dict[float, dict[str, Any]] = {}
        for lr in recipe.lr_grid:
            folder = None if context.folder is None else context.folder / f"lr-{lr:g}"
            attempt = replace(self, recipe=replace(recipe, lr=lr, lr_grid=()))
            within = replace(context, tell=partial(_with_step_size, context, lr))
            found[lr] = Attempt(attempt, within, seed, folder).run()
        best = max(found, key=lambda lr: found[lr]["validation"])
        chosen = {"lr": best, "validations": {str(lr): each["validation"] for lr, each in found.items()}}
        return {**found[best], **chosen, "took": sum(each["took"] for each in found.values())}


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _with_step_size(context: Context, lr: float, text: str) -> None:
    context.tell(f"step size {lr:g}, {text}")


class Attempt:
    """One training with one step size, which goes on from its last checkpoint.

    Args:
        job: The training.
        context: Where it runs.
        seed: Its seed.
        folder: Where it leaves checkpoints and its measures.
        watch: Makes a further callback for epochs.
    """

    def __init__(
        self, job: Training, context: Context, seed: int, folder: Path | None, watch: Watch | None = None
    ) -> None:
        self._job, self._context, self._seed, self._folder = job, context, seed, folder
        self._watch = watch
        self._earlier = 0.0  # seconds until the checkpoint that it goes on from

    def run(self) -> dict[str, Any]:
        """The measures, and how long it took; those of an attempt that has ended are read from its folder."""
        done = None if self._folder is None else self._folder / "done.json"
        if done is not None and done.is_file():
            return json.loads(done.read_text(encoding="utf-8"))
        started = time.perf_counter()
        found, interrupted = self._train()
        if found is not None:
            found["took"] = self._earlier + time.perf_counter() - started
        if found is not None and done is not None:
            write_json(done, found)
            shutil.rmtree(done.parent / "checkpoints", ignore_errors=True)
        if found is None or interrupted:
            raise KeyboardInterrupt
        return found

    def _train(self) -> tuple[dict[str, Any] | None, bool]:
        """The measures, None for a training that has not ended, and whether it was interrupted."""
        job, recipe, context = self._job, self._job.recipe, self._context
        data = job.source.load(
            context.data_root,
            batch_size=recipe.batch_size,
            seed=self._seed,
            validation=recipe.validation,
            augment=recipe.augment,
        )
        data = data if context.device == "cpu" else data.to(context.device)
        trainer = self._trainer(data)
        watching = [self._watch(trainer, data)] if self._watch is not None else []
        try:
            history = self._ended(trainer) or trainer.fit(
                data.train,
                recipe.epochs,
                validate=data.test,
                callbacks=[self._tell, *watching, *recipe.callbacks()],
                progress=False,
                save_to=self._checkpoints,
            )
        except (FloatingPointError, StageError) as error:
            if not isinstance(error.__cause__ or error, FloatingPointError):
                raise
            return {"validation": 0.0, "diverged": True}, False
        if history.interrupted and not (history.epochs and history.epochs[-1].epoch + 1 == recipe.epochs):
            self._forget_drained(trainer)
            return None, True
        found = measures(history, recipe.target)
        if data.validation is not None:
            found["validation"] = percent(trainer.evaluate(data.validation).metric)
        return {**found, "runtime": str(trainer.runtime.name)}, history.interrupted

    def _forget_drained(self, trainer: Trainer) -> None:
        """Remove the checkpoint of the interruption if a pipeline with delays has drained for it.

        The one before has everything in flight, so the training goes on as if nothing had happened.
        """
        folder = self._checkpoints
        if folder is not None and trainer.plan is not None and any(trainer.plan.delays):
            shutil.rmtree(finished(folder)[-1])

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

    def _trainer(self, data: Data) -> Trainer:
        job, context, folder = self._job, self._context, self._checkpoints
        model = job.net.build(context.data_root, self._shapes(data), self._seed)
        method, transfer, on_gpu = job.method, job.recipe.transfer, context.device != "cpu"
        if transfer is not None:
            method = with_scale(method, replace(transfer, classifier=classifier(model)))
        options: dict[str, Any] = {
            **job.recipe.trainer_options(len(data.train)),
            "method": method,
            "loss": F.cross_entropy,
            "runtime": "auto" if on_gpu and method.planned else "threads",
            "compile": context.compile and method.planned,
            "seed": self._seed,
        }
        stages = job.net.cut(model, context.data_root, job.k, context.device)
        if folder is None or not folder.is_dir() or not any(folder.glob("checkpoint-*")):
            return Trainer(stages, **options)
        trainer = Trainer.resume(folder, stages, **options)
        self._earlier = _seconds(find(folder).manifest)
        return trainer

    @staticmethod
    def _shapes(data: Data) -> dict[str, Any]:
        embedded = data.name == "imdb"
        return {**data.shapes, "vocabulary": len(data.vocabulary)} if embedded else data.shapes

    def _tell(self, end: EpochEnd) -> None:
        score = end.record.validation
        accuracy = "" if score is None or score.metric is None else f", {100 * score.metric:.2f} %"
        self._context.tell(f"epoch {end.record.epoch + 1} of {self._job.recipe.epochs}{accuracy}")


def _seconds(manifest: Manifest) -> float:
    """How long a training had taken when it was saved."""
    fit = manifest.fit
    assert fit is not None
    return fit.seconds + sum(epoch.seconds for epoch in History.from_dict(fit.history).epochs)


def percent(share: float | None) -> float:
    """An accuracy in percent, without the rounding errors by which means over batches differ from each other.

    Example:
        >>> percent(0.9500000001), percent(0.9499999999)
        (95.0, 95.0)
    """
    return round(100 * (share or 0.0), PLACES)


def measures(history: History, target: float | None) -> dict[str, Any]:
    """What a table may have of a training; accuracies are in percent, seconds include the scoring."""
    curve = [percent(metric) for metric in history.metrics]
    errors = [round(100 - value, PLACES) for value in curve]
    clock = list(accumulate(epoch.seconds for epoch in history.epochs))
    best = max(range(len(curve)), key=curve.__getitem__)
    reached = None if target is None else history.time_to(target)
    return {
        "best": curve[best],
        "last": curve[-1],
        "error": errors[-1],
        "epochs": best + 1,
        "seconds": clock[best],
        "target_epochs": None if reached is None else reached.epochs,
        "target_seconds": None if reached is None else reached.seconds,
        "images/s": statistics.median(epoch.images_per_second for epoch in history.epochs),
        "curve": curve,
        "errors": errors,
        "clock": clock,
        "losses": history.losses,
    }
