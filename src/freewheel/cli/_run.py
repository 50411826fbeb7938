"""A training run from the command line: what it does, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from freewheel.cli._job import prepare
from freewheel.cli._one_core import OneCore
from freewheel.cli._opening import opening
from freewheel.cli._outcome import Outcome
from freewheel.cli._output import as_json, say
from freewheel.cli._ranks import follows
from freewheel.cli._resume import history_of_run, remember_run
from freewheel.cli._settings import Settings


def run(settings: Settings) -> Outcome:
    """Trains, with the yardstick before and after."""
    job = prepare(settings)
    if not settings.quiet:
        for line in opening(job):
            say(line)
    if not follows():
        remember_run(job)
    one_core = OneCore(job) if settings.compare else None
    _measure(one_core, settings)
    if settings.resume is not None and job.trainer.unfinished is None:
        history = history_of_run(settings.resume)
    else:
        history = job.trainer.fit(
            job.data.train,
            settings.epochs,
            validate=job.data.test,
            progress=False if settings.quiet else None,
            save_to=settings.save_to,
            save_every=settings.interval,
        )
    if not history.interrupted:
        _measure(one_core, settings)
    last = history.epochs[-1] if history.epochs else None
    score = last.validation if last is not None and last.complete else None
    return Outcome(
        job=job,
        history=history,
        score=score or job.trainer.evaluate(job.data.test),
        one_core=one_core,
    )


def _measure(one_core: OneCore | None, settings: Settings) -> None:
    if one_core is None:
        return
    if not settings.quiet:
        say("timing plain PyTorch on one core …", error=True)
    one_core.measure()


def write(outcome: Outcome) -> Iterator[str]:
    """Writes the files that were asked for, and says so."""
    settings = outcome.job.settings
    if settings.json is not None:
        settings.json.write_text(as_json(outcome.as_dict()) + "\n", encoding="utf-8")
        yield f"wrote {settings.json}"
    if settings.save is not None:
        torch.save(outcome.job.trainer.model().state_dict(), settings.save)
        yield f"wrote {settings.save}"
