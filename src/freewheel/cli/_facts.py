"""What is known of a run of `freewheel train` when it begins, as plain data."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import freewheel
from freewheel.cli._job import Job
from freewheel.cli._places import anew
from freewheel.cli._train_options import TrainOptions
from freewheel.runs import facts_of

DRAWN = ("timeline", "memory")  # of the plan: for the report


def job_facts(job: Job) -> dict[str, Any]:
    """What is trained, on what, and how."""
    options, facts = job.settings.options, facts_of(job.trainer)
    return {
        "arguments": asdict(options),
        **facts,
        "data": job.data.facts,
        "model": {"name": options.model, "parameters": job.parameters},
        "pretrained": None if job.pretrained is None else asdict(job.pretrained),
        "transfer": None if job.transfer is None else asdict(job.transfer),
        "optimizer": {"name": options.optimizer, **job.settings.optimizer_settings()},
        "split": {**asdict(job.stages.report), "speedup": job.stages.report.speedup},
        "versions": {**facts["versions"], "freewheel": freewheel.__version__},
    }


def summary_facts(job: Job) -> dict[str, Any]:
    """The same without the timeline of the plan and what it holds."""
    return {name: value for name, value in job_facts(job).items() if name not in DRAWN}


def run_facts(job: Job, config: Path | None) -> dict[str, Any]:
    """What the folder of the run says of it."""
    repeat = None if config is None else repeats(config)
    known = {"freewheel": freewheel.__version__, "command": typed(), "repeat": repeat}
    return {**job_facts(job), **known, "epochs": job.settings.options.epochs}


def repeats(config: Path) -> str:
    """The command that repeats the run with this config."""
    return f"freewheel train {anew(config)}"


def typed() -> str:
    """The command line of this process."""
    return shlex.join(["freewheel", *sys.argv[1:]])


def several_facts(options: TrainOptions, config: Path, names: list[str]) -> dict[str, Any]:
    """What the folder of several runs says of them."""
    return {
        "freewheel": freewheel.__version__,
        "command": typed(),
        "repeat": repeats(config),
        "arguments": asdict(options),
        "method": {"name": options.method},
        "data": {"name": options.data},
        "model": {"name": options.model},
        "runs": names,
    }
