"""Taking up a checkpoint: by the same trainer to the last bit, or, once drained, by another one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from freewheel.checkpoint import (
    GENERATORS,
    Counts,
    File,
    Found,
    Restart,
    difference,
    file_name,
    find,
    read_tensors,
    settings_of,
    spread,
)
from freewheel.runtime import Start
from freewheel.stage import Stage
from freewheel.trainer._history import History
from freewheel.trainer._saving import Resumed


def look_up(path: object) -> Found:
    """The checkpoint at a path, checked."""
    if not isinstance(path, str | Path):
        raise TypeError(f"path={path!r}: give the folder of a checkpoint, or the one that save_to named")
    found = find(Path(path))
    if found.manifest.torch != torch.__version__:
        warnings.warn(
            f"the checkpoint was saved with torch {found.manifest.torch}, this is {torch.__version__}: it goes on, but "
            "perhaps not to the same bits",
            stacklevel=3,
        )
    return found


def take_up(found: Found, stages: Sequence[Stage], names: Sequence[dict[str, str]], threads: int) -> Resumed | None:
    """Loads a checkpoint into stages; gives the fit that goes on from it, None where there is none under way."""
    manifest = found.manifest
    settings = settings_of(stages[0].options, threads)
    other = difference(manifest.settings, settings)
    if other is not None and not manifest.drained:
        name, saved, given = other
        raise ValueError(
            f"{name}={given!r}, but {found.folder} has batches in flight that go on only with {name}={saved!r}: give "
            "that, or a checkpoint that is drained (the end of a fit, or trainer.save)"
        )
    by_name = {file.name: file for file in manifest.files}
    files = [by_name[file_name(k)] for k in range(manifest.settings["stages"])]
    contents = [read_tensors(found.folder, file) for file in files]
    _check_collected(manifest.settings, stages, contents, same=other is None)
    heads = all(manifest.settings.get(name) == settings[name] for name in ("stages", "head"))
    spread(stages, names, contents, same=other is None, heads=heads)
    if manifest.progress is None:
        return None
    progress = manifest.progress
    assert manifest.history is not None
    restart = Restart(
        batches=manifest.batches,
        epoch=contents[0]["epoch"],
        fetched=progress.fetched if other is None else (manifest.batches,) * len(stages),
        folder=found.folder,
        files=_files(by_name, manifest.settings) if other is None else {},
        counts=() if other is None else _counts(found, len(stages)),
        names=tuple(names),
    )
    return Resumed(
        epochs=progress.epochs,
        start=Start(manifest.batches, progress.epoch, progress.first, progress.last),
        generators=read_tensors(found.folder, by_name[GENERATORS]),
        seconds=progress.seconds,
        history=History.from_dict(manifest.history),
        restart=restart,
    )


def _files(by_name: dict[str, File], settings: dict[str, Any]) -> dict[tuple[int, int], File]:
    """What each stage and replica has written; of a drained pipeline, replica 0 alone."""
    stages, replicas = settings["stages"], settings.get("replicas", 1)
    names = {(k, r): file_name(k, r) for r in range(replicas) for k in range(stages)}
    return {place: by_name[name] for place, name in names.items() if name in by_name}


def _check_collected(saved: dict[str, Any], stages: Sequence[Stage], contents: Sequence[Any], *, same: bool) -> None:
    """Gradients that wait for their step are worth something to the same corrections alone."""
    if not same and any(content["gradients"] for content in contents):
        raise ValueError(
            f"the checkpoint holds gradients collected by {', '.join(saved['corrections'])}, which only the same "
            "method, stages, seed and threads can go on with: give these"
        )


def _counts(found: Found, stages: int) -> tuple[Counts, ...]:
    """For other stages than those that counted: the losses, which are the last stage's, and nothing else."""
    settings, by_name = found.manifest.settings, {file.name: file for file in found.manifest.files}
    lasts = [file for (k, _), file in _files(by_name, settings).items() if k == settings["stages"] - 1]
    losses = [loss for last in lasts for loss in Counts(*read_tensors(found.folder, last)["counts"]).losses]
    return (*[Counts()] * (stages - 1), Counts(losses=losses))
