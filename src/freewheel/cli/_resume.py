"""Going on with a run: its settings lie beside its checkpoints, so that it takes no other options."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import freewheel
from freewheel.checkpoint import find, finished, seal, unseal, write_text
from freewheel.cli._job import Job, cut_of
from freewheel.cli._output import plain_data
from freewheel.cli._settings import Settings
from freewheel.runtime import is_one_of_several
from freewheel.trainer import History

NAME = "settings.json"
FREE = ("runtime", "slack", "data_root", "compare", "json", "save", "quiet", "save_every")  # change no result
NOT_STORED = ("resume", "save_to", "compare", "json", "save", "quiet")
PATHS = ("data_root", "pretrained")


def remember_run(job: Job) -> None:
    """Writes a run's settings beside its checkpoints to come, everything that was measured or counted included."""
    settings, folder = job.settings, job.settings.save_to
    if folder is None or settings.resume is not None:
        return
    if folder.is_dir() and finished(folder):
        raise ValueError(
            f"--save-to {folder}: there are checkpoints of an earlier run; go on with it, --resume {folder}, or name "
            "another folder"
        )
    arguments = {name: value for name, value in asdict(settings).items() if name not in NOT_STORED}
    arguments |= {name: str(arguments[name].resolve()) for name in PATHS if arguments[name] is not None}
    arguments |= {"stages": settings.stage_count, "threads": settings.stage_threads}
    arguments["balance"] = cut_of(settings, job.stages)
    folder.mkdir(parents=True, exist_ok=True)
    content = seal({"freewheel": freewheel.__version__, "arguments": plain_data(arguments)})
    unfinished = folder / f".{NAME}-{os.getpid()}"
    write_text(unfinished, content)
    os.replace(unfinished, folder / NAME)


def settings_of_run(folder: Path, given: dict[str, Any], typed: list[str]) -> Settings:
    """The settings of the run that is to go on; refuses what was typed and says otherwise.

    Args:
        folder: The folder of its checkpoints.
        given: All arguments.
        typed: The names of those that were typed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--resume {folder}: there is no such folder")
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"--resume {folder}: there is no {NAME}, so it is not a folder that --save-to named")
    stored: dict[str, Any] = unseal(folder / NAME)["arguments"]
    stored |= {name: Path(stored[name]) for name in PATHS if stored[name] is not None}
    if (stored["runtime"] == "torchrun") != is_one_of_several():
        stored["runtime"] = None  # it goes on in the way it is started now
    for name in typed:
        flag = f"--{name.replace('_', '-')}"
        if name == "save_to" and given[name].resolve() != folder.resolve():
            raise ValueError(
                f"--save-to {given[name]} with --resume {folder}: a run goes on in its folder; leave it out"
            )
        if name in stored and name not in FREE and _same(given[name]) != _same(stored[name]):
            had = "was not given any" if stored[name] is None else f"has {stored[name]}"
            raise ValueError(f"{flag} {given[name]} with --resume {folder}: that run {had}; leave it out")
    chosen = {name: given[name] for name in (*FREE, *NOT_STORED) if name in typed or name not in stored}
    return Settings(**{**given, **stored, **chosen, "resume": folder, "save_to": folder})


def history_of_run(folder: Path) -> History:
    """The history of a run that is complete."""
    history = find(folder).manifest.history
    if history is None:
        raise ValueError(f"--resume {folder}: its last checkpoint was not saved by freewheel train")
    return History.from_dict(history)


def _same(value: Any) -> Any:
    return value.resolve() if isinstance(value, Path) else value
