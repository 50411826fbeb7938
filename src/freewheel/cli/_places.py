"""Where the files of a run go: its folder, its checkpoints, and what of it is traced."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Literal

from freewheel.checkpoint import finished
from freewheel.cli._end import run_names
from freewheel.cli._train_options import TRACED, TrainOptions
from freewheel.methods import Method
from freewheel.runs import CHECKPOINTS, FACTS, is_run


def checkpoint_folder(options: TrainOptions, method: Method) -> Path | None:
    """Where a run saves its checkpoints, if it does.

    Without `--save-to` that is in its own folder; under torchrun, whose hosts may not share that, in none, unless a run
    goes on that has one.
    """
    if options.save_to is not None:
        return options.save_to
    if options.run_dir is None or not options.checkpoints or not method.planned:
        return None
    return None if options.runtime == "torchrun" and options.resume is None else options.run_dir / CHECKPOINTS


def stored_checkpoints(folder: Path) -> Path:
    """The folder of the checkpoints of what `--resume` names: a run, or that folder itself."""
    if not is_run(folder):
        return folder
    arguments: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8")).get("arguments") or {}
    return folder / CHECKPOINTS if arguments.get("save_to") is None else Path(arguments["save_to"])


def resumes(folder: Path) -> str:
    """The option that continues the run in this folder, as a shell takes it."""
    return f"--resume {shlex.quote(str(folder))}"


def anew(config: Path) -> str:
    """The option that begins the run with this config anew, as a shell takes it."""
    return f"--config {shlex.quote(str(config))}"


def resumed_places(folder: Path) -> dict[str, Path]:
    """The options that say where a resumed run goes on."""
    if not is_run(folder):
        return {"save_to": folder}
    checkpoints = stored_checkpoints(folder)
    return {"run_dir": folder} if checkpoints == folder / CHECKPOINTS else {"run_dir": folder, "save_to": checkpoints}


def child_places(whole: TrainOptions, name: str) -> dict[str, Any]:
    """The same of one of several runs."""
    save_to = None if whole.save_to is None else whole.save_to / name
    run_dir = None if whole.run_dir is None else whole.run_dir / name
    checkpoints = save_to or (run_dir and run_dir / CHECKPOINTS)
    begun = whole.resume is not None and checkpoints is not None and checkpoints.is_dir() and finished(checkpoints)
    return {"save_to": save_to, "run_dir": run_dir, "resume": checkpoints if begun else None}


def traced(options: TrainOptions) -> range | Literal[False]:
    """The batches that are traced, as `fit` takes them.

    Example:
        >>> traced(TrainOptions(trace_batches="100:200")), traced(TrainOptions(trace=True)), traced(TrainOptions())
        (range(100, 200), range(0, 2000), False)
    """
    if options.trace_batches is None:
        return range(TRACED) if options.trace else False
    first, colon, end = options.trace_batches.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(f"--trace-batches {options.trace_batches}: give two numbers of batches, such as 100:200")
    return range(int(first), int(end))


def check_places(options: TrainOptions, method: Method) -> None:
    """Refuse places that contradict each other, or cannot be written."""
    if not options.run:
        given = next((flag for flag, value in _of_a_run(options) if value), None)
        if given is not None:
            raise ValueError(f"{given} with --no-run: that is written into the folder of the run; leave one out")
    elif options.run_dir is not None and options.resume is None:
        _check_new(options.run_dir)
    traced(options)
    _check_checkpoints(options, method)


def _of_a_run(options: TrainOptions) -> list[tuple[str, Any]]:
    return [
        (f"--run-dir {options.run_dir}", options.run_dir is not None and options.resume is None),
        ("--trace", options.trace),
        (f"--trace-batches {options.trace_batches}", options.trace_batches),
    ]


def _check_new(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--run-dir {folder}: that is a file, give a folder")
    if is_run(folder):
        raise ValueError(
            f"--run-dir {folder}: there is a run already; continue it with {resumes(folder)}, or name another folder"
        )


def _check_checkpoints(options: TrainOptions, method: Method) -> None:
    """Refuse checkpoints that cannot be made."""
    folder, every = options.save_to, options.save_every
    if every is not None and every != "epoch" and (isinstance(every, str) or every < 1):
        raise ValueError(f"--save-every {every}: give a number of batches, 1 or more, or epoch")
    if folder is not None and not options.checkpoints:
        raise ValueError(f"--save-to {folder} with --no-checkpoints: there would be nothing to save; leave one out")
    if folder is not None and not method.planned:
        raise ValueError(
            f"--save-to {folder} with {options.method}: a race cannot be resumed in its middle; --save FILE writes the "
            "trained weights"
        )
    if every is not None and folder is None:
        if not options.run or options.runtime == "torchrun":
            why = "under torchrun" if options.run else "with --no-run"
            raise ValueError(f"--save-every {every} {why}: name the folder of the checkpoints too, with --save-to DIR")
        if not options.checkpoints:
            raise ValueError(f"--save-every {every} with --no-checkpoints: leave one out")
        if not method.planned:
            raise ValueError(f"--save-every {every} with {options.method}: a race has no checkpoints; leave it out")
    if folder is not None:
        _check_folder(folder, options)


def _check_folder(folder: Path, options: TrainOptions) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--save-to {folder}: that is a file, give a folder")
    folders = [folder / name for name in run_names(options)] or [folder]
    if options.resume is None and any(each.is_dir() and finished(each) for each in folders):
        raise ValueError(
            f"--save-to {folder}: there are checkpoints of an earlier run; continue it with {resumes(folder)}, or name "
            "another folder"
        )
