"""`freewheel evaluate`: score the network of a run on its test samples."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from freewheel.cli._config import NAME, read_config
from freewheel.cli._job import prepare
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import check_file, print_line, write_json
from freewheel.cli._places import resumes
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions
from freewheel.runs import WEIGHTS, Run, newest_run
from freewheel.trainer import Score


def evaluate(
    run: Annotated[Path | None, declare(OPTIONS, "RUN", "The folder of a run; default: the newest in runs.")] = None,
    *,
    data_root: Annotated[Path | None, declare(OPTIONS, "DIR", "Folder with the files, if it has moved.")] = None,
    device: Annotated[str, declare(OPTIONS, "NAME", "cpu or cuda.")] = "cpu",
    json: Annotated[Path | None, declare(OPTIONS, "FILE", "Write the score to this file.")] = None,
) -> int:
    """Score the trained network of a run on the test samples."""
    check_file("--json", json)
    found = Run.open(newest_run() if run is None else run)
    score, things = _score(found, data_root, device)
    accuracy = "" if score.metric is None else f"accuracy {score.metric:.2%}, "
    print_line(f"{found.folder}: test {accuracy}loss {score.loss:.4f} ({score.samples:,} {things})")
    for line in write_json(asdict(score), json):
        print_line(line)
    return 0


def _score(run: Run, data_root: Path | None, device: str) -> tuple[Score, str]:
    if run.children:
        names = ", ".join(child.name for child in run.children)
        raise ValueError(f"{run.folder}: that is a folder of several runs; name one of them: {names}")
    weights = run.folder / WEIGHTS
    if not weights.is_file():
        advice = "wait until it ends" if run.status == "running" else f"go on with it: {resumes(run.folder)}"
        raise FileNotFoundError(f"{run.folder}: there is no {WEIGHTS}, since the run has not ended; {advice}")
    stored = read_config(run.folder / NAME, "config")
    options = TrainOptions(**{**stored, "runtime": None, "device": device, "compile": False})
    options = replace(options, data_root=data_root or options.data_root, run=False, compare=False, quiet=True)
    job = prepare(resolve(options))
    _load(job.trainer.model(), weights, device, options.model)
    return job.trainer.evaluate(job.data.test), job.data.things


def _load(model: nn.Module, path: Path, device: str, name: str | None) -> None:
    """Load the trained weights; refuses a damaged file, and one for another network."""
    try:
        weights = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise ValueError(f"{path}: that is not what Freewheel has written; restore it, or train again") from None
    own = model.state_dict()
    other = next((key for key in {**own, **weights} if _shape(own, key) != _shape(weights, key)), None)
    if other is not None:
        raise ValueError(
            f"{path}: {other} is {_shape(weights, other)} there and {_shape(own, other)} in {name} as it is now; undo "
            "what has changed since the training"
        )
    model.load_state_dict(weights)


def _shape(weights: Mapping[str, Tensor], name: str) -> str:
    return str(tuple(weights[name].shape)) if name in weights else "missing"
