"""What `freewheel train` prints before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from freewheel.cli._end import describe_end, describe_runs
from freewheel.cli._facts import repeats
from freewheel.cli._job import Job
from freewheel.cli._output import plural
from freewheel.cli._plan import locks
from freewheel.cli._recipe import describe_recipe
from freewheel.cli._record import Recorded
from freewheel.cli._settings import Settings
from freewheel.cli._train_options import TrainOptions
from freewheel.cli._traits import describe_tangents
from freewheel.cli._transfer import describe_transfer


def opening(job: Job, recorded: Recorded, several: TrainOptions | None = None) -> Iterator[str]:
    """The lines that say what will be trained.

    Args:
        job: The run, or the first of several.
        recorded: Where it is written, with the config that repeats it.
        several: The options of all runs, if there are several.
    """
    settings, options, data = job.settings, job.settings.options, job.data
    yield from describe_recipe(several or options)
    yield f"data     {data.description}"
    yield f"model    {options.model}: {job.parameters:,} parameters"
    if job.pretrained is not None:
        yield f"weights  {job.pretrained}"
    yield from _method_and_runtime(job)
    if job.compiling.reason:
        yield f"compile  {job.compiling}"
    yield from _steps_and_runs(settings, several)
    if settings.forward:
        yield f"tangents {describe_tangents(settings.pipeline)}"
    if job.transfer is not None:
        yield f"transfer {describe_transfer(job.transfer)}"
    if several is not None and several.resume is not None:
        yield f"resume   {several.resume}: goes on with the runs that are not complete"
    elif options.resume is not None:
        left = "continues" if job.trainer.unfinished else "is complete: there is nothing left to train"
        yield f"resume   {options.resume}: the run {left}"
    yield from recorded.describe() if several is None else _folder_of_all(several)
    if recorded.config is not None:
        yield f"repeat   {repeats(recorded.config)}"
    yield ""
    if settings.method.planned and not options.balance:  # otherwise the cut was not measured here
        yield str(job.stages.report)
        yield ""


def _folder_of_all(options: TrainOptions) -> Iterator[str]:
    if options.run_dir is not None:
        yield f"run      {options.run_dir}: a folder for each of them"


def _steps_and_runs(settings: Settings, several: TrainOptions | None) -> Iterator[str]:
    """The optimizer and its step sizes, the runs and their end."""
    options, schedule = settings.options, str(settings.schedule)
    shown = settings.optimizer_settings()
    if several is not None and several.lr_grid:
        shown.pop("lr")
    values = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in shown.items())
    form = f"{schedule} schedule" if schedule == options.schedule else schedule
    yield f"steps    {options.optimizer}: {values}, {form}{'' if several else f', seed {options.seed}'}"
    late = [str(milestone) for milestone in options.milestones if milestone >= options.epochs]
    if late:
        yield f"         the training ends before milestone {', '.join(late)}"
    if several is not None:
        yield f"runs     {describe_runs(several)}"
    if end := describe_end(options):
        yield f"ends     {end}"


def _method_and_runtime(job: Job) -> Iterator[str]:
    method, plan, config = job.settings.method, job.trainer.plan, job.trainer.config
    threads = plural(config.threads or 1, "thread")
    if plan is None:
        workers = plural(method.total_workers(len(job.stages)), "worker")
        weights = f"{method.copies} copies of the weights" if method.copies > 1 else "shared weights"
        yield f"method   {method.name}: no schedule, {workers} on {weights}"
        yield f"runtime  {config.runtime}: {workers}, {threads} each"
        return
    delays, left = " ".join(map(str, plan.delays)), ", ".join(locks(plan)) or "none"
    yield f"method   {method.name}: delays {delays}, locks left {left}"
    replicas = f" in each of {config.replicas} replicas" if config.replicas > 1 else ""
    reason = f"; chosen: {job.trainer.runtime.reason}" if job.trainer.runtime.reason else ""
    yield f"runtime  {config.runtime}: {plural(len(job.stages), 'stage')}{replicas}, {threads} each{reason}"
