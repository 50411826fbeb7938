"""Options that are not typed: those of `--config`, of a run that `--resume` continues, and of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import UNSET, App, ArgumentCollection, Token

from freewheel.checkpoint import find, finished
from freewheel.cli._config import NAME, PATHS, is_unchanged, merge, read_config
from freewheel.cli._method_options import complete_options, write_value
from freewheel.cli._options import flag
from freewheel.cli._places import anew, resumed_places, stored_checkpoints
from freewheel.cli._recipe import recipe_defaults
from freewheel.runs import Run, is_run, take_lock
from freewheel.runtime import is_one_of_several
from freewheel.trainer import History

# Options that change no result, so that a run may continue with others.
FREE = (
    *("runtime", "slack", "overlap", "data_root", "save_every", "compare", "json", "save", "quiet", "resume"),
    *("run", "run_dir", "trace", "trace_batches"),
)


def fill_in(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give options that were not typed their values in the file of `--config`, or of the run that `--resume` names.

    What neither says is that of the recipe, if there is one.
    """
    by_name = {argument.field_info.name: argument for argument in arguments if argument.keys}
    for name, argument in by_name.items():
        if any(token.value == "" and token.implicit_value is UNSET for token in argument.tokens):
            raise ValueError(f"{flag(name)} is empty: give a value, or leave it out")
    typed: dict[str, Any] = {name: argument.convert() for name, argument in by_name.items() if argument.tokens}
    if "resume" in typed:
        stored = options_of_run(typed["resume"], typed)
    else:
        stored = merge(read_config(typed["config"]), typed) if "config" in typed else {}
    if "recipe" in (given := {**stored, **typed}):
        stored = {**merge(recipe_defaults(given), given.keys() - {"recipe"}), **stored}
    for name in stored.keys() - typed.keys():
        by_name[name].append(Token(implicit_value=stored[name], source="config"))


def options_of_run(folder: Path, typed: dict[str, Any]) -> dict[str, Any]:
    """The options of the run in this folder; refuses typed ones that contradict them."""
    path = folder / NAME
    if not folder.is_dir():
        raise FileNotFoundError(f"--resume {folder}: there is no such folder")
    if not path.exists():
        raise FileNotFoundError(f"--resume {folder}: there is no {NAME}, so it is no run and no --save-to folder")
    if is_run(folder) and (given := next((name for name in ("run_dir", "run") if name in typed), None)):
        shown = f"--run-dir {typed[given]}" if given == "run_dir" else "--no-run"
        raise ValueError(f"{shown} with --resume {folder}: that run goes on in its own folder; leave it out")
    if not is_unchanged(path):
        raise ValueError(
            f"--resume {folder}: {NAME} was changed after the run began; undo that, or begin a new run with "
            f"{anew(path)}"
        )
    if is_run(folder):
        _check_run(folder)
    stored = {**read_config(path, "--resume"), **resumed_places(folder)}
    if is_one_of_several():
        stored.pop("runtime", None)  # the way it is started now decides
    for name, value in typed.items():
        if name not in FREE and _comparable(name, value, stored) != _comparable(name, stored.get(name), stored):
            came, has = (write_value(each).removesuffix(",") for each in (value, stored.get(name)))
            raise ValueError(f"{flag(name)} {came} with --resume {folder}: that run has {has}; leave it out")
    return stored


def _check_run(folder: Path) -> None:
    """Refuse a run that is going on, or has nothing to go on from."""
    if not is_one_of_several():
        take_lock(folder).close()
    checkpoints = stored_checkpoints(folder)
    if not Run.open(folder).children and not (checkpoints.is_dir() and finished(checkpoints)):
        raise FileNotFoundError(
            f"--resume {folder}: that run has no checkpoints to go on from; {anew(folder / NAME)} begins it anew"
        )


def _comparable(name: str, value: Any, stored: dict[str, Any]) -> Any:
    """The value in a form in which the same things are equal."""
    if name == "option":
        return sorted(complete_options(stored["method"], value or ()))
    return Path(value).resolve() if name in (*PATHS, "save_to") and value is not None else value


def history_of_run(folder: Path) -> History:
    """The history of a run that is complete."""
    history = find(stored_checkpoints(folder)).manifest.history
    if history is None:
        raise ValueError(f"--resume {folder}: its last checkpoint was not saved by freewheel train")
    return History.from_dict(history)
