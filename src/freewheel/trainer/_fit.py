"""One call of `fit`: feeding, cuts, records, callbacks, interruption."""

from __future__ import annotations

import copy
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from freewheel._malloc import keep_freed_memory
from freewheel._seeds import seed_of
from freewheel.runtime import (
    NOT_FINITE,
    START,
    Abroad,
    Cut,
    Feed,
    Outcome,
    Run,
    rank_and_size,
    recall,
    remember,
    seeded,
    torchrun,
)
from freewheel.stage import Stage, load_tensors
from freewheel.trainer._evaluate import Metric, evaluate
from freewheel.trainer._history import Epoch, History, LayerUpdates, mean_loss
from freewheel.trainer._progress import Progress
from freewheel.trainer._saving import Resumed, Saving


class Chain(nn.Module):
    """Stages run one after the other."""

    def __init__(self, stages: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Any) -> Any:
        """Passes the input through all stages."""
        for stage in self.stages:
            x = stage(x)
        return x


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """What a callback sees: the record of the epoch, and the network as it was after exactly that many batches."""

    record: Epoch
    history: History
    stages: Sequence[nn.Module]

    def model(self) -> nn.Module:
        """The network at the cut, in eval mode; it changes after the callback returns, so copy what is to be kept."""
        return Chain(self.stages).eval()


Callback = Callable[[EpochEnd], Any]


def fit(
    stages: Sequence[Stage],
    loader: Iterable[Any],
    epochs: int,
    *,
    runtime: Callable[[Run], Outcome],
    abroad: Abroad,
    threads: int,
    metric: Metric,
    validate: Iterable[Any] | None,
    callbacks: Sequence[Callback],
    progress: bool | None,
    batches_before: int,
    epochs_before: int,
    saving: Saving | None = None,
    resumed: Resumed | None = None,
) -> History:
    """Trains the stages; see `Trainer.fit`."""
    modules = [stage.module for stage in stages]
    options = stages[0].options
    watched = validate is not None or bool(callbacks)
    shadows = copy.deepcopy(modules) if watched else []
    start = resumed.start if resumed else START
    silent = runtime is torchrun and rank_and_size()[0] > 0  # rank 0 speaks for all
    bar = Progress(loader, epochs, done=start.batch, enabled=False if silent else progress)
    remembers = partial(remember, loader) if saving else None
    feed = Feed(loader, epochs, on_batch=bar.advance, start=start, remember=remembers)
    history = resumed.history if resumed else History()
    marks = [time.perf_counter() - (resumed.seconds if resumed else 0.0)]  # the start, and the time of each cut

    def on_cut(cut: Cut) -> bool:
        if saving and cut.saved:
            saving.complete(cut, feed, history, since=marks[-1])
            return False
        # Scoring must not draw from the generators of the feed: when it happens is a matter of timing.
        with seeded(seed_of(options.seed, batches_before, cut.batches)):
            return reached(cut)

    def reached(cut: Cut) -> bool:
        record = _record(cut, history, since=marks[-1])
        if not math.isfinite(record.loss):  # on a CPU the batch itself is refused; elsewhere looking would hold it up
            raise FloatingPointError(f"the mean loss of epoch {record.epoch + 1} is {record.loss}: {NOT_FINITE}")
        marks.append(cut.time)
        feed.forget(cut.batches)
        for shadow, part in zip(shadows, cut.parts):
            assert part.state is not None
            load_tensors(shadow, part.state["module"])
        if validate is not None:
            score = evaluate(shadows, validate, loss=options.loss, metric=metric, autocast=options.autocast)
            record = replace(record, validation=score)
        history.epochs.append(record)
        bar.epoch(record)
        answers = [callback(EpochEnd(record=record, history=history, stages=shadows)) for callback in callbacks]
        return any(answer is True for answer in answers)

    keep_freed_memory()
    seed = seed_of(options.seed, batches_before)
    run = Run(
        stages,
        feed,
        on_cut=on_cut,
        states=watched,
        threads=threads,
        seed=seed,
        batches_before=batches_before,
        epochs_before=epochs_before,
        saver=saving.saver if saving else None,
        restart=resumed.restart if resumed else None,
        abroad=replace(abroad, tell=lambda outcome: _finished(history, outcome, feed, marks[-1]).as_dict()),
    )
    under_way = saving.under_way() if saving else nullcontext()
    with under_way, bar, _train_mode(modules), seeded(seed), _interruptible(feed, silent=silent):
        if resumed:
            recall(loader, resumed.generators)
        outcome = runtime(run)
    if outcome.told is not None:
        return History.from_dict(outcome.told)
    if outcome.stopped_at is not None:
        for stage, part in zip(stages, outcome.stopped_at.parts):
            assert part.state is not None
            stage.load(part.state)
    history.stopped, history.interrupted = outcome.stopped_at is not None, feed.stopped
    if saving:
        assert outcome.rest is not None
        counts = [part.counts for part in outcome.rest.parts]
        if outcome.stopped_at is not None or not feed.stopped:
            saving.end(history.batches, counts, history)
        else:
            saving.end(feed.announced, counts, history, place=feed.place(feed.announced), since=marks[-1])
    return _finished(history, outcome, feed, marks[-1])


def _finished(history: History, outcome: Outcome, feed: Feed, since: float) -> History:
    """The history with what came after its last epoch."""
    epochs = list(history.epochs)
    if outcome.stopped_at is None and outcome.rest is not None and outcome.rest.parts[-1].losses:
        epochs.append(replace(_record(outcome.rest, history, since=since), complete=False))
    return History(epochs=epochs, interrupted=feed.stopped, stopped=outcome.stopped_at is not None)


def _record(cut: Cut, history: History, *, since: float) -> Epoch:
    seconds = max(cut.time - since, 1e-9)
    loss, samples = mean_loss(cut.parts[-1].losses)
    return Epoch(
        epoch=len(history.epochs),
        batches=cut.batches,
        samples=samples,
        loss=loss,
        validation=None,
        seconds=seconds,
        images_per_second=samples / seconds,
        busy=tuple(min(1.0, part.busy / seconds) for part in cut.parts),
        staleness=tuple(part.staleness for part in cut.parts),
        layers={name: _layer(*counts) for part in cut.parts for name, counts in part.layers.items()},
    )


def _layer(started: int, finished: int, staleness: float) -> LayerUpdates:
    return LayerUpdates(started=started, finished=finished, staleness=staleness)


@contextmanager
def _train_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Puts a module that is in eval mode as a whole into train mode; one that is not keeps the modes of its parts."""
    sleeping = [module for module in modules if not module.training]
    for module in sleeping:
        module.train()
    yield


@contextmanager
def _interruptible(feed: Feed, *, silent: bool) -> Iterator[None]:
    """The first Ctrl-C ends the feed, so that the pipeline drains; a second one is a KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if feed.stopped:
            raise KeyboardInterrupt
        feed.stop()
        if not silent:
            sys.stderr.write("\ninterrupted: finishing the batches under way (Ctrl-C again stops at once)\n")

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
