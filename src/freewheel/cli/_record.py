"""The folder of a run of `freewheel train`: begun once all is checked and loaded, and ended whatever happens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

from freewheel.cli._config import NAME, write_config
from freewheel.cli._end import callbacks
from freewheel.cli._facts import run_facts, several_facts
from freewheel.cli._job import Job
from freewheel.cli._output import plural, save_weights
from freewheel.cli._own import sized
from freewheel.cli._places import checkpoint_folder, traced
from freewheel.cli._ranks import follows
from freewheel.cli._train_options import TrainOptions
from freewheel.runs import WEIGHTS, Run, RunRecorder, default_parent, is_run, new_folder
from freewheel.trainer import History

SECONDS = 30.0  # of training between two checkpoints, where the time of a batch is known


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run whose folder, if it has one, is being written."""

    job: Job
    config: Path | None  # repeats it
    recorder: RunRecorder | None

    def fit(self) -> History:
        """Train."""
        job, options, recorder = self.job, self.job.settings.options, self.recorder
        checkpoints = checkpoint_folder(options, job.settings.method)
        return job.trainer.fit(
            job.data.train,
            options.epochs,
            validate=job.scored,
            callbacks=[*([recorder] if recorder else []), *callbacks(options)],
            progress=False if options.quiet else None,
            save_to=checkpoints,
            save_every=None if checkpoints is None else save_every(job),
            trace=traced(options),
            on_progress=recorder.progress if recorder else None,
        )

    def finish(self, history: History, **figures: Any) -> None:
        """Write what the run has come to, and the trained network."""
        if self.recorder is not None:
            save_weights(self.job.trainer.model(), self.recorder.folder / WEIGHTS)
            self.recorder.finish(history, **figures)

    def describe(self) -> Iterator[str]:
        """Where the run is written, in words."""
        if self.recorder is None:
            return
        method, options = self.job.settings.method, self.job.settings.options
        folder, saved = checkpoint_folder(options, method), "no checkpoints"
        if folder is not None:
            inside = "" if options.save_to is None else f" in {folder}"
            saved = f"checkpoints {_described(self.job)}{inside}"
        yield f"run      {self.recorder.folder}: {saved}"
        if batches := traced(options):
            yield f"trace    batches {batches.start:,} to {batches.stop - 1:,}"


@contextmanager
def recording(job: Job) -> Iterator[Recorded]:
    """Begin the folder of a run; its config is written before the training starts."""
    job = _with_folder(job)
    options = job.settings.options
    config = None if follows() or options.resume is not None else write_config(options, job.cut)
    if not _records(options) or _is_complete(job):
        yield Recorded(job=job, config=config, recorder=None)
        return
    assert options.run_dir is not None
    with RunRecorder(options.run_dir, job.trainer, run_facts(job, config), goes_on=True) as recorder:
        yield Recorded(job=job, config=config, recorder=recorder)


@contextmanager
def recording_several(options: TrainOptions, names: list[str]) -> Iterator[tuple[TrainOptions, RunRecorder | None]]:
    """Begin the folder of several runs, each of which has one of its own in it."""
    if not _records(options):
        yield options, None
        return
    made = options.run_dir is None
    folder = _new_folder(options) if options.run_dir is None else options.run_dir
    try:
        with RunRecorder(folder, facts=several_facts(options, folder / NAME, names), goes_on=True) as recorder:
            yield replace(options, run_dir=folder), recorder
    except BaseException:
        if made and not any(is_run(folder / name) for name in names):
            shutil.rmtree(folder)
        raise


def save_every(job: Job) -> int | Literal["epoch"]:
    """The batches between checkpoints: as asked for, else an epoch, or as many as take a while."""
    asked, batches = job.settings.options.save_every, len(job.data.train) if sized(job.data.train) else 0
    if asked is not None:
        return asked  # pyright: ignore[reportReturnType]
    epoch = max(job.stages.report.seconds, default=0.0) * batches
    return "epoch" if not epoch or epoch >= SECONDS else ceil(SECONDS / epoch) * batches


def _described(job: Job) -> str:
    """When checkpoints are saved, in words."""
    every, options = save_every(job), job.settings.options
    if every == "epoch":
        return "after every epoch"
    batches = len(job.data.train) if sized(job.data.train) else 0
    if batches and every >= options.epochs * batches:
        return "at the end"
    return (
        f"after every {plural(every // batches, 'epoch') if batches and not every % batches else f'{every:,} batches'}"
    )


def _with_folder(job: Job) -> Job:
    """The run with a folder, if it writes one."""
    options = job.settings.options
    if not _records(options) or options.run_dir is not None:
        return job
    options = replace(options, run_dir=_new_folder(options))
    return replace(job, settings=replace(job.settings, options=options))


def _new_folder(options: TrainOptions) -> Path:
    parent = default_parent()
    try:
        return new_folder(parent, options.method, _short(options.model), _short(options.data))
    except OSError as error:
        raise type(error)(
            f"{parent}: the folder of the run cannot be made there ({error.strerror}); give --run-dir DIR, or --no-run"
        ) from None


def _short(name: str | None) -> str:
    """The name of a network or a data set; of one's own, that of its file.

    Example:
        >>> _short("resnet-20"), _short("/home/me/net.py:make")
        ('resnet-20', 'net')
    """
    return Path(str(name).partition(".py:")[0]).name


def _is_complete(job: Job) -> bool:
    """Whether a resumed run has nothing left to do, and its final figures are written."""
    options = job.settings.options
    if options.resume is None or options.run_dir is None or job.trainer.unfinished is not None:
        return False
    return is_run(options.run_dir) and Run.open(options.run_dir).status == "complete"


def _records(options: TrainOptions) -> bool:
    return options.run and not follows()
