"""One call of `fit`: feeding, cuts, records, callbacks, interruption."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from freewheel._malloc import keep_freed_memory
from freewheel._seeds import seed_of
from freewheel.checkpoint import Checkpoint, CheckpointWriter, FitPosition
from freewheel.runtime import (
    NOT_FINITE,
    RUNTIMES,
    Before,
    Cut,
    Feed,
    Outcome,
    Prefetcher,
    Reader,
    Run,
    RunSpec,
    common,
    deterministic_convolutions,
    recall,
    remember,
    seeded,
)
from freewheel.stage import Stage, copied, load_tensors
from freewheel.trace import Recording, Trace
from freewheel.trainer._callbacks import BatchEnd, EpochEnd, Position, StageSequence, asks_to_stop
from freewheel.trainer._evaluate import evaluate
from freewheel.trainer._guard import Guard
from freewheel.trainer._history import Epoch, History, LayerUpdates, mean_loss
from freewheel.trainer._progress import ProgressBar
from freewheel.trainer._request import FitRequest
from freewheel.trainer._setup import Setup
from freewheel.trainer._tracing import recorded, traced_facts


class Fit:
    """One training of the stages; see `Trainer.fit`."""

    def __init__(
        self,
        setup: Setup,
        stages: Sequence[Stage],
        request: FitRequest,
        before: Before,
        writer: CheckpointWriter | None,
        resumed: Checkpoint | None,
    ) -> None:
        self._setup, self._stages, self._request, self._writer = setup, stages, request, writer
        watched = request.validate is not None or bool(request.callbacks)
        modules = [stage.module for stage in stages] if watched else []
        self._shadow, self._shadows = _copied(setup.model, modules)
        calls = watched or bool(request.batch_callbacks) or request.on_progress is not None
        self._guard = Guard(setup.model, stages, setup.config.loss, enabled=calls)
        seed = seed_of(setup.config.seed, before.batches)
        self._spec = RunSpec(
            seed=seed,
            before=before,
            states=watched,
            writer=writer,
            checkpoint=resumed,
            steps=bool(request.batch_callbacks),
            norms=bool(request.batch_callbacks) and request.gradient_norms,
            trace=request.trace,
        )
        self._recordings: list[Recording] = []
        start = self._spec.start
        self._silent = not RUNTIMES[setup.config.runtime].leads
        shown = False if self._silent else request.progress
        self._bar = ProgressBar(
            request.loader,
            request.epochs,
            request.max_steps,
            done=start.batch,
            enabled=shown,
            listener=request.on_progress and self._guard.guarded(request.on_progress, "on_progress"),
        )
        remembers = partial(remember, request.loader) if writer else None
        source = _prefetcher(setup, request.loader, start.batch)
        self._feed = Feed(
            request.loader,
            request.epochs,
            read=source.read,
            ahead=source.ahead,
            limit=request.max_steps,
            on_batch=self._bar.advance,
            start=start,
            remember=remembers,
        )
        self._history = History.from_dict(resumed.position.history) if resumed else History()
        seconds = resumed.position.seconds if resumed else 0.0
        self._since = time.perf_counter() - seconds  # the last epoch ended

    def run(self) -> History:
        """Train to the end, or until a callback or Ctrl-C ends it."""
        keep_freed_memory()
        config, blueprints, spec = self._setup.config, self._setup.blueprints, self._spec
        run = Run(
            config,
            self._stages,
            blueprints,
            self._feed,
            spec,
            on_cut=self._on_cut,
            encode_history=lambda outcome: self._finished(outcome).as_dict(),
            strict=not self._setup.choice.reason,
        )
        runner = self._setup.method.runner(config.runtime, blueprints)
        writing = self._writer.lock() if self._writer else nullcontext()
        interruptible = _interruptible(self._feed, self._silent)
        with writing, self._bar, seeded(spec.seed), interruptible, deterministic_convolutions():
            if spec.checkpoint:
                recall(self._request.loader, spec.checkpoint.generators())
            elif config.check:
                self._setup.check(self._feed.peek(), spec.before)
            outcome = runner(run)
        return self._conclude(outcome)

    def _on_cut(self, cut: Cut) -> bool:
        if cut.step:
            return self._batch_end(cut)
        if self._writer and cut.saved:
            files = [file for snapshot in cut.snapshots for file in snapshot.saved]
            self._writer.complete(files, *self._position(cut.batches, cut.time))
            return False
        # Scoring must not draw from the generators of the feed: when it happens depends on timing.
        with seeded(seed_of(self._setup.config.seed, self._spec.before.batches, cut.batches)):
            return self._epoch_end(cut)

    def _batch_end(self, cut: Cut) -> bool:
        """Call the callbacks for batches; none of them can end the training, which stages have gone on with."""
        loss, samples = mean_loss(cut.snapshots[-1].losses)
        step, norms = self._spec.before.batches + cut.batches, [snapshot.norm for snapshot in cut.snapshots]
        found = tuple(float(norm) for norm in norms if norm is not None)
        end = BatchEnd(step=step, epoch=len(self._history.epochs), loss=loss, samples=samples, gradient_norms=found)
        with self._guard.callbacks():
            stops = [asks_to_stop(callback(end)) for callback in self._request.batch_callbacks]
        if any(stops):
            raise TypeError(
                "a callback for batches returned True: later batches are under way by then, so only callbacks for "
                "epochs end a training; give fit max_steps to end it after a number of batches"
            )
        return False

    def _epoch_end(self, cut: Cut) -> bool:
        """Score and record an epoch, and call the callbacks; return whether one of them ends the training."""
        self._recordings += recorded(cut)
        record = self._record(cut)
        if not math.isfinite(record.loss):  # on a CPU the batch itself is refused; elsewhere looking would hold it up
            raise FloatingPointError(f"the mean loss of epoch {record.epoch + 1} is {record.loss}: {NOT_FINITE}")
        self._since = cut.time
        self._feed.forget(cut.batches)
        for shadow, snapshot in zip(self._shadows, cut.snapshots):
            assert snapshot.state is not None
            load_tensors(shadow, snapshot.state["module"])
        if self._request.validate is not None:
            score = evaluate(
                self._shadows, self._request.validate, self._setup.config, partial(self._guard.tensors, "a metric")
            )
            record = replace(record, validation=score)
        self._history.epochs.append(record)
        self._bar.epoch(record)
        before = self._spec.before
        before = Before(before.batches + cut.batches, before.epochs + len(self._history.epochs))
        position = Position([snapshot.state for snapshot in cut.snapshots], before)
        known = {"stages": self._shadows, "network": self._shadow, "position": position}
        end = EpochEnd(record=record, history=self._history, **known)
        with self._guard.callbacks():
            stops = [asks_to_stop(callback(end)) for callback in self._request.callbacks]  # every one is called
        position.states = ()
        return any(stops)

    def _conclude(self, outcome: Outcome) -> History:
        """Load the state in which the run has ended, and save it."""
        if outcome.history is not None:
            return History.from_dict(outcome.history)
        stopped = outcome.stopped_at
        if stopped is not None:
            for stage, snapshot in zip(self._stages, stopped.snapshots):
                assert snapshot.state is not None
                stage.load(snapshot.state)
        history, feed = self._history, self._feed
        history.stopped, history.interrupted = stopped is not None, feed.stopped
        finished = replace(self._finished(outcome), trace=self._traced(outcome))
        if self._writer:
            assert outcome.rest is not None
            counts, epochs = [snapshot.counts for snapshot in outcome.rest.snapshots], self._request.epochs
            if stopped is not None or not feed.stopped:
                end = FitPosition(batches=finished.batches, epochs=epochs, epoch=epochs, history=finished.as_dict())
                self._writer.save(self._stages, counts, end)
            else:
                self._writer.save(self._stages, counts, *self._position(feed.announced, time.perf_counter()))
        return finished

    def _position(self, batches: int, now: float) -> tuple[FitPosition, Any]:
        """The position of the fit after a number of batches, and the generators of its loader."""
        place, generators = self._feed.place(batches)
        position = FitPosition(
            batches=batches,
            epochs=self._request.epochs,
            epoch=place.epoch,
            first=place.first,
            last=place.last,
            seconds=now - self._since,
            history=self._history.as_dict(),
        )
        return position, generators

    def _finished(self, outcome: Outcome) -> History:
        """The history with what came after its last epoch."""
        epochs, rest = list(self._history.epochs), outcome.rest
        if outcome.stopped_at is None and rest is not None and rest.snapshots[-1].losses:
            epochs.append(replace(self._record(rest), complete=False))
        return History(epochs=epochs, interrupted=self._feed.stopped, stopped=outcome.stopped_at is not None)

    def _record(self, cut: Cut) -> Epoch:
        """What is known of the epoch that ends with a cut."""
        seconds = max(cut.time - self._since, 1e-9)
        loss, samples = mean_loss(cut.snapshots[-1].losses)
        on_cpu = all(blueprint.device.type == "cpu" for blueprint in self._setup.blueprints)
        return Epoch(
            epoch=len(self._history.epochs),
            batches=cut.batches,
            samples=samples,
            loss=loss,
            validation=None,
            seconds=seconds,
            images_per_second=samples / seconds,
            busy=tuple(min(1.0, each.busy / seconds) for each in cut.snapshots) if on_cpu else (),
            staleness=tuple(each.gaps / max(1, each.updates) for each in cut.snapshots),
            layers={name: LayerUpdates(*counts) for each in cut.snapshots for name, counts in each.layers.items()},
            race=cut.race,
        )

    def _traced(self, outcome: Outcome) -> Trace | None:
        """What the stages have done, if that was recorded."""
        if self._request.trace is None:
            return None
        recordings = [*self._recordings, *(recorded(outcome.rest) if outcome.rest else ())]
        return Trace.of(recordings, traced_facts(self._setup))


def _prefetcher(setup: Setup, loader: Iterable[Any], first: int) -> Prefetcher:
    """What reads the batches: it copies them to GPUs where the stages of a plan are in this process."""
    stages, schedule = setup.blueprints, setup.options.schedule
    input_device = target_device = torch.device("cpu")
    if setup.method.planned and RUNTIMES[setup.config.runtime].local:
        input_device = stages[0].device
        target_device = common(each.device for each in stages if schedule.gets_targets(each.index))
    pins = "cuda" in (input_device.type, target_device.type)
    return Prefetcher(Reader.of(setup.config, loader, pins=pins).batch, input_device, target_device, first)


def _copied(model: nn.Module, modules: Sequence[nn.Module]) -> tuple[nn.Module, list[nn.Module]]:
    """Copy the stages, and the model around them; a model that cannot be copied is the stages in a row."""
    if not modules:
        return model, []
    try:
        network, copies = copied((model, list(modules)))
    except (RuntimeError, TypeError):
        copies = copied(list(modules))
        network = StageSequence(copies)
    return network, copies


@contextmanager
def _interruptible(feed: Feed, silent: bool) -> Iterator[None]:
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
