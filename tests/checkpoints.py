"""Helpers for tests of checkpoints: a run that is saved, and one that resumes from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import freewheel as fw
from freewheel.checkpoint import find, finished, seal, unseal
from rows import batches, network, tensors, trainer

EPOCHS = 2


def loader() -> list[tuple[Tensor, Tensor]]:
    """An epoch of six batches."""
    return batches(6)


def saved_at(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder from the middle of a fit, by their number of batches."""
    found = [(find(path).manifest, path) for path in finished(folder)]
    return {manifest.batches: path for manifest, path in found if manifest.unfinished}


def resume(path: Path, stages: list[nn.Module], method: Any, **options: Any) -> fw.Trainer:
    """A trainer with the tests' defaults, resumed from a checkpoint."""
    return trainer(stages, method, make=partial(fw.Trainer.resume, path), **options)


def numbers(history: fw.History) -> list[Any]:
    """All of a history except times."""
    return [(e.epoch, e.batches, e.samples, e.loss, e.validation, e.staleness, e.complete) for e in history.epochs] + [
        history.interrupted,
        history.stopped,
    ]


def everything(made: fw.Trainer) -> list[Any]:
    """The state of a trainer: weights, buffers, optimizers, schedulers, gradients, heads."""
    weights = tensors(*made.stages)
    gradients = [p.grad for stage in made.stages for p in stage.parameters()]
    optimizers = [o.state_dict() if o else None for o in made.optimizers]
    schedulers = [s.scheduler.state_dict() if s.scheduler else None for s in made._stages]
    corrections = [stage.corrections.state() for stage in made._stages]
    heads = [stage.head_state() for stage in made._stages]
    return tree_flatten(
        [weights, gradients, optimizers, schedulers, corrections, heads, made._before.batches, made._before.epochs]
    )[0]


def same(one: list[Any], two: list[Any]) -> bool:
    """Whether two such states are bit-identical."""
    return len(one) == len(two) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b for a, b in zip(one, two)
    )


def goes_on(
    folder: Path,
    make: Callable[[], Any],
    stages: Callable[[int], list[nn.Module]],
    *,
    every: int = 5,
    runtimes: tuple[str, str] = ("simulate", "simulate"),
    data: Callable[[], Any] = loader,
    epochs: int = EPOCHS,
    plain: bool = False,
    only: int | None = None,
    **options: Any,
) -> None:
    """Save a run, resume it from each of its checkpoints in a fresh trainer, and compare.

    Args:
        folder: The folder of checkpoints.
        make: Makes the method.
        stages: Makes the stages from a seed.
        every: When to save.
        runtimes: The runtime that saves, and the one that resumes.
        data: Makes the loader.
        epochs: Passes over it.
        plain: Whether to compare with a run that is not saved, too.
        only: The one checkpoint to resume from; all of them by default.
        options: The trainer's.
    """
    test = batches(2, seed=9) if options.pop("validated", False) else None
    straight = trainer(stages(0), make(), runtime=runtimes[0], **options)
    history = straight.fit(data(), epochs, validate=test, save_to=folder, save_every=every)
    expected = everything(straight)
    if plain:
        bare = trainer(stages(0), make(), **options)
        assert numbers(bare.fit(data(), epochs, validate=test)) == numbers(history)
        assert same(everything(bare), expected)
    paths = saved_at(folder)
    assert list(paths) == list(range(every, history.batches, every))
    for batch, path in paths.items() if only is None else [(only, paths[only])]:
        again = resume(path, stages(77), make(), runtime=runtimes[1], **options)
        assert again.unfinished == epochs
        assert not same(everything(again), expected)
        found = again.fit(data(), epochs, validate=test)
        assert numbers(found) == numbers(history), batch
        assert same(everything(again), expected), batch


def run_saved(folder: Path, method: Any, k: int, *, every: int = 5, **options: Any) -> list[Any]:
    """Everything at the end of a run that is saved."""
    made = trainer(network(k), method, **options)
    made.fit(loader(), EPOCHS, save_to=folder, save_every=every)
    return everything(made)


def rewrite(checkpoint: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change the content of a file of tensors, and its digest in the manifest."""
    path = checkpoint / name
    torch.save(change(torch.load(path, weights_only=True)), path)
    data = path.read_bytes()
    content = unseal(checkpoint / "manifest.json")
    for file in content["files"]:
        if file["name"] == name:
            file.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    (checkpoint / "manifest.json").write_text(seal(content))


def manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest as written."""
    return json.loads((checkpoint / "manifest.json").read_text())
