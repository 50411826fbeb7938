"""What `freewheel train` says before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from freewheel.cli._job import Job
from freewheel.cli._output import plural
from freewheel.cli._plan import locks
from freewheel.cli._transfer import in_words
from freewheel.tangents import TangentOptions


def opening(job: Job) -> Iterator[str]:
    """What will be trained."""
    settings, data, plan = job.settings, job.data, job.trainer.plan
    shape = "x".join(map(str, data.in_shape))
    values = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.optimizer_settings().items())
    yield (
        f"data     {data.name}: {len(data.train.images):,} {data.things} to train, {len(data.test.images):,} to test, "
        f"{shape}, {data.classes} classes, batches of {data.train.batch_size}"
    )
    yield f"model    {settings.model_name}: {job.parameters:,} parameters"
    if job.pretrained is not None:
        yield f"weights  {job.pretrained}"
    method, threads = job.trainer.method, plural(job.trainer.config.threads, "thread")
    if plan is None:
        who = plural(method.total_workers(len(job.stages)), "worker")
        yield f"method   {method.name}: no schedule, {who} on shared weights"
    else:
        replicas = f" in each of {job.trainer.config.replicas} replicas" if job.trainer.config.replicas > 1 else ""
        who = f"{plural(len(job.stages), 'stage')}{replicas}"
        yield (
            f"method   {method.name}: delays {' '.join(map(str, plan.delays))}, "
            f"locks left {', '.join(locks(plan)) or 'none'}"
        )
    yield f"runtime  {job.trainer.config.runtime}: {who}, {threads} each"
    yield f"steps    {settings.optimizer_name}: {values}, {settings.schedule} schedule, seed {settings.seed}"
    if settings.forward:
        yield f"tangents {tangents_in_words(job.trainer.method.pipeline(len(job.stages)).credit)}"
    if job.transfer is not None:
        yield f"transfer {in_words(job.transfer)}"
    if settings.resume is not None:
        left = "goes on" if job.trainer.unfinished else "is complete: there is nothing left to train"
        yield f"resume   {settings.resume}: the run {left}"
    yield ""
    measured = settings.balance is None  # else the cut was not made here, and its costs are not known
    if measured and plan is not None:
        yield str(job.stages.report)
        yield ""


def tangents_in_words(tangents: TangentOptions) -> str:
    """One line; with the noisiest choice, also what to try.

    Example:
        >>> tangents_in_words(TangentOptions(distribution="sphere", tangents=4))
        '4 from the sphere in each step, moving weights'
        >>> tangents_in_words(TangentOptions())
        '1 gaussian in each step, moving weights; less noise: -o perturb=activations, or -o tangents=4'
    """
    drawn = "from the sphere" if tangents.distribution == "sphere" else tangents.distribution
    line = f"{tangents.tangents} {drawn} in each step, moving {tangents.perturb}"
    noisy = tangents.perturb == "weights" and tangents.tangents == 1
    return f"{line}; less noise: -o perturb=activations, or -o tangents=4" if noisy else line
