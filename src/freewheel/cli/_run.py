"""A training run: what it prints before, what it does, and what it writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Protocol

from freewheel.cli._job import Job, prepare
from freewheel.cli._one_core import OneCore
from freewheel.cli._opening import opening
from freewheel.cli._output import print_line, save_weights, write_json
from freewheel.cli._record import Recorded, recording
from freewheel.cli._resume import history_of_run
from freewheel.cli._settings import Settings
from freewheel.cli._summary import RunSummary
from freewheel.trainer import History


class Summary(Protocol):
    """What one run or several have come to."""

    @property
    def job(self) -> Job | None:
        """The run whose network is written by `--save`."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended it."""
        ...

    def print_tables(self) -> None:
        """Print what there is to see of epochs and runs."""

    def lines(self) -> Iterator[str]:
        """The closing lines."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        ...


def run(settings: Settings) -> RunSummary:
    """Train, and time plain PyTorch on one core before and after."""
    with recording(prepare(settings)) as recorded:
        job, options = recorded.job, recorded.job.settings.options
        if not options.quiet:
            for line in opening(job, recorded):
                print_line(line)
        one_core = OneCore(job) if options.compare else None
        _time_one_core(one_core, "before", quiet=options.quiet)
        history = fit(recorded)
        if not history.interrupted:
            _time_one_core(one_core, "after", quiet=options.quiet)
        summary = RunSummary(job=job, history=history, score=test_score(job, history), one_core=one_core)
        recorded.finish(history, **summary.figures())
    return summary


def fit(recorded: Recorded) -> History:
    """Train, unless the resumed run is complete."""
    job = recorded.job
    resume = job.settings.options.resume
    if resume is not None and job.trainer.unfinished is None:
        return history_of_run(resume)
    return recorded.fit()


def test_score(job: Job, history: History) -> Any:
    """The score of the trained network on the test samples, measured now unless the last epoch ended with that."""
    last = history.epochs[-1] if history.epochs else None
    known = last.validation if last is not None and last.complete and job.data.validation is None else None
    return known or job.trainer.evaluate(job.data.test)


def _time_one_core(one_core: OneCore | None, when: str, *, quiet: bool) -> None:
    if one_core is None:
        return
    if not quiet:
        print_line(f"timing plain PyTorch on one core, {when} the training …", error=True)
    one_core.time()


def write_results(summary: Summary) -> Iterator[str]:
    """Write the files that were asked for; yields the lines that report them."""
    job = summary.job
    assert job is not None
    options = job.settings.options
    if options.json is not None:
        yield from write_json(summary.as_dict(), options.json)
    if options.save is not None:
        save_weights(job.trainer.model(), options.save)
        yield f"wrote {options.save}"
    if options.run and options.run_dir is not None:
        yield f"wrote {options.run_dir}: freewheel report {shlex.quote(str(options.run_dir))} draws it"
