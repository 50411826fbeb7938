"""Several runs: one for each step size, of which the best on held-out samples is kept, and one for each seed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from freewheel.cli._config import write_config
from freewheel.cli._end import run_names
from freewheel.cli._job import Job, prepare
from freewheel.cli._opening import opening
from freewheel.cli._output import print_line
from freewheel.cli._places import child_places
from freewheel.cli._ranks import follows
from freewheel.cli._record import Recorded, recording, recording_several
from freewheel.cli._run import fit, test_score
from freewheel.cli._settings import Settings, resolve
from freewheel.cli._several import SeedRun, SeveralRuns, Trial
from freewheel.cli._summary import RunSummary
from freewheel.runtime import StageError, is_one_of_several
from freewheel.trainer import History

ALONE: dict[str, Any] = {"lr_grid": (), "seeds": 1, "compare": False, "json": None, "save": None, "write_config": None}


def run_several(settings: Settings) -> SeveralRuns:
    """Train with each step size, then with each seed. Ctrl-C ends all, and what has been done is summarized."""
    with recording_several(settings.options, run_names(settings.options)) as (options, recorder):
        found = SeveralRuns(options=options)
        _search(found)
        first, count = found.options.seed, found.options.seeds or 1
        lr = found.best.lr if found.trials else found.options.lr
        for seed in range(first + bool(found.trials), first + count):
            if found.interrupted:
                break
            with recording(_prepare(found, f"seed-{seed}", seed=seed, lr=lr)) as recorded:
                _finish(found, recorded, fit(recorded))
        if recorder is not None:
            statistics = {name: asdict(each) for name, each in found.statistics().items()}
            recorder.finish(statistics=statistics, interrupted=found.interrupted)
    return found


def _search(found: SeveralRuns) -> None:
    """Train with each step size, and score the best one on the test samples: it is the run with the first seed."""
    best: Job | None = None
    for lr in found.options.lr_grid:
        with recording(_prepare(found, f"lr-{lr:g}", lr=lr)) as recorded:
            history = _fit_unless_diverged(recorded)
            if history is not None:
                recorded.finish(history)
        if history is not None and history.interrupted:
            found.interrupted = True
            return
        found.trials.append(trial := Trial(lr=lr, history=history))
        best = recorded.job if found.best is trial else best
        if not found.options.quiet:
            score = "diverged" if trial.score is None else f"held-out loss {trial.score.loss:.4f}"
            accurate = trial.score is not None and trial.score.metric is not None
            print_line(f"{score}, accuracy {trial.score.metric:.2%}" if accurate and trial.score else score)
    if found.trials:
        if best is None or found.best.history is None:
            raise ValueError("--lr-grid: the loss became infinite with every step size; give smaller ones")
        _score(found, best, found.best.history)


def _finish(found: SeveralRuns, recorded: Recorded, history: History) -> None:
    """Score a run on the test samples, unless it was interrupted, and write what it has come to."""
    summary = _score(found, recorded.job, history)
    recorded.finish(history, **({} if summary is None else summary.figures()))


def _score(found: SeveralRuns, job: Job, history: History) -> RunSummary | None:
    """Score a run on the test samples, unless it was interrupted."""
    _keep(found, job)
    if history.interrupted:
        found.interrupted = True
        return None
    score = test_score(job, history)
    summary = RunSummary(job=job, history=history, score=score, one_core=None)
    seed = job.settings.options.seed
    found.runs.append(SeedRun(seed=seed, history=history, score=score, record=summary.as_dict()))
    if not found.options.quiet:
        for line in summary.lines():
            print_line(line)
    return summary


def _fit_unless_diverged(recorded: Recorded) -> History | None:
    """Train; None if the loss became infinite. Under torchrun that ends all processes."""
    try:
        return fit(recorded)
    except (StageError, FloatingPointError) as error:
        if is_one_of_several() or not isinstance(error.__cause__ or error, FloatingPointError):
            raise
        return None


def _prepare(found: SeveralRuns, name: str, **changes: Any) -> Job:
    """Make a run ready. The first one prints what all have in common; the cut that it has measured is that of all."""
    whole, places = found.options, child_places(found.options, name)
    own = {**ALONE, **places, "run_dir": None, **changes}  # its folder may be there already, if the runs are resumed
    job = prepare(resolve(replace(whole, **own)))
    job = replace(job, settings=replace(job.settings, options=replace(job.settings.options, run_dir=places["run_dir"])))
    if found.job is None:
        options = job.settings.options
        cut = {"balance": job.cut, "split": None} if job.cut else {}
        found.options = replace(whole, threads=options.threads, compile=options.compile, **cut)
        _open(found, job)
    _keep(found, job)
    if not whole.quiet:
        names, options = run_names(whole), job.settings.options
        print_line(f"\nrun {names.index(name) + 1} of {len(names)}: lr {options.lr:g}, seed {options.seed}")
    return job


def _keep(found: SeveralRuns, job: Job) -> None:
    """Keep the run whose network is written, with the options of all, which say where to."""
    found.job = replace(job, settings=replace(job.settings, options=found.options))


def _open(found: SeveralRuns, job: Job) -> None:
    """Write the config that repeats all runs, and print what they have in common."""
    config = None if follows() or found.options.resume is not None else write_config(found.options, ())
    if not found.options.quiet:
        for line in opening(job, Recorded(job=job, config=config, recorder=None), found.options):
            print_line(line)
