"""The TOML file of `--config`: reading it, and writing one that repeats a run.

Its keys are the options of `freewheel train` without the dashes in front. A file that Freewheel has written begins with
a digest of the rest, by which `--resume` notices a change.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import tomli_w

import freewheel
from freewheel._files import write_text
from freewheel.cli._recipe import TRAINING
from freewheel.cli._train_options import TrainOptions
from freewheel.runtime import is_one_of_several

NAME = "config.toml"
NOT_READ = ("config", "write_config", "resume")  # options that name files of this kind
NOT_WRITTEN = (  # they say where results go, not what to train
    *(*NOT_READ, "save_to", "checkpoints", "compare", "json", "save", "quiet"),
    *("run", "run_dir", "trace", "trace_batches"),
)
PATHS = ("data_root", "pretrained")
DIGEST = "# sha256 of the lines below: "
WANTED: dict[Any, tuple[tuple[type, ...], str]] = {  # by the type of an option: what a file may hold for it
    str: ((str,), "a string in quotes"),
    Path: ((str,), "a path in quotes"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    bool: ((bool,), "true or false"),
    int | str: ((int, str), 'a whole number or "epoch"'),
}
# Typing one of the options on the right drops what a file says about the option on the left.
OVERRIDDEN_BY: dict[str, tuple[str, ...]] = {
    "option": ("method",),
    **dict.fromkeys(("momentum", "weight_decay"), ("optimizer",)),
    "lr": ("optimizer", "lr_grid"),
    "lr_grid": ("optimizer", "lr"),
    "schedule": ("milestones", "t_max"),
    **dict.fromkeys(("milestones", "gamma"), ("schedule", "t_max")),
    "t_max": ("schedule", "milestones"),
    **dict.fromkeys(("transfer_warmup", "transfer_ramp", "transfer_peak"), ("transfer",)),
    "hidden": ("model",),
    "stages": ("at", "balance"),
    "split": ("at", "balance"),
    **dict.fromkeys(("at", "balance"), ("data", "model", "stages", "split", "at", "balance")),
}


def read_config(path: Path, flag: str = "--config") -> dict[str, Any]:
    """The options in a file, by the names of the fields; `flag` is what errors begin with."""
    if not path.is_file():
        raise FileNotFoundError(f"{flag} {path}: there is no such file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{flag} {path}: that is not TOML: {error}") from None
    hints = {name.replace("_", "-"): hint for name, hint in get_type_hints(TrainOptions).items()}
    known = [name for name in hints if name.replace("-", "_") not in NOT_READ]
    out: dict[str, Any] = {}
    for key, value in content.items():
        came = f"{flag} {path}: {key} = {json.dumps(value, default=str)}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "freewheel train --help lists the options"
            raise ValueError(f"{came}: there is no option {key!r}; {advice}")
        out[key.replace("-", "_")] = _checked(came, hints[key], value)
    return out


def _checked(came: str, hint: Any, value: Any) -> Any:
    """The value as an option of this type has it; refuses others."""
    if get_origin(hint) is tuple:
        types, words = WANTED[get_args(hint)[0]]
        if type(value) is not list or any(type(item) not in types for item in value):
            raise TypeError(f"{came}: give a list in brackets, each item {words}")
        return tuple(value)
    allowed = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    types, words = WANTED[allowed[0] if len(allowed) == 1 else int | str]
    if type(value) not in types:
        raise TypeError(f"{came}: give {words}")
    return {Path: Path, float: float}.get(allowed[0], lambda same: same)(value)


def merge(stored: dict[str, Any], typed: Iterable[str]) -> dict[str, Any]:
    """The options of a file that typed ones leave standing.

    Example:
        >>> merge({"epochs": 3, "seed": 1, "optimizer": "sgd", "momentum": 0.5}, ["seed", "optimizer"])
        {'epochs': 3}
    """
    names = set(typed)
    out = {
        name: value
        for name, value in stored.items()
        if name not in names
        and names.isdisjoint(OVERRIDDEN_BY.get(name, ()))
        and not (name in TRAINING and "recipe" in names)
    }
    no_folder = "run" in names or is_one_of_several()  # of the run, where checkpoints would go
    if no_folder and not names & {"save_to", "resume"} and "save_to" not in out:
        out.pop("save_every", None)
    return out


def config_of(options: TrainOptions, cut: tuple[int, ...]) -> dict[str, Any]:
    """The options that repeat a run, with its cut, by the names of the fields."""
    out = {name: value for name, value in asdict(options).items() if name not in NOT_WRITTEN}
    out |= {name: str(out[name].resolve()) for name in PATHS if out[name] is not None}
    if cut:
        out |= {"balance": cut, "split": None}
    if out["runtime"] == "torchrun":
        out["runtime"] = None  # how a run is started decides that
    return {name: value for name, value in out.items() if value not in (None, ())}


def config_paths(options: TrainOptions) -> list[Path]:
    """Where the config of a run goes: where it is asked for and into its folders, else beside its other files.

    If there are none, it goes to the cache folder.
    """
    asked = [] if options.write_config is None else [options.write_config]
    folders = [folder / NAME for folder in (options.run_dir, options.save_to) if folder is not None]
    if folders:
        return [*asked, *folders]
    beside = [file.with_suffix(f".{NAME}") for file in (options.json, options.save) if file is not None]
    return asked or beside[:1] or [cache_path()]


def cache_path() -> Path:
    """The place of the config of the last run that has no files of its own."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "freewheel" / f"last-run.{NAME}"


def write_config(options: TrainOptions, cut: tuple[int, ...]) -> Path | None:
    """Write the config that repeats a run; returns where, or None if only the cache folder is left and is read-only."""
    found = config_of(options, cut)
    order = [field.name for field in fields(TrainOptions) if field.name in found]
    body = tomli_w.dumps({name.replace("_", "-"): found[name] for name in order})
    head = f"# Freewheel {freewheel.__version__}: freewheel train --config FILE repeats this run.\n"
    paths = config_paths(options)
    for path in paths:
        try:
            write_text(path, f"{head}{DIGEST}{_digest(body)}\n{body}")
        except OSError:
            if path == cache_path():
                return None
            raise
    return paths[0]


def is_unchanged(path: Path) -> bool:
    """Whether a file is as `write_config` has left it."""
    _, digest, *body = path.read_text(encoding="utf-8").split("\n", 2)
    return digest == f"{DIGEST}{_digest(''.join(body))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
