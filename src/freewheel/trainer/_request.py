"""The arguments of `Trainer.fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import isgenerator
from pathlib import Path
from typing import Any

import torch

from freewheel._errors import check_callable, of_type, whole_number
from freewheel.trainer._callbacks import BatchCallback, Callback


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The arguments of `Trainer.fit`, checked."""

    loader: Iterable[Any]
    epochs: int
    max_steps: int | None
    validate: Iterable[Any] | None
    callbacks: Sequence[Callback]
    batch_callbacks: Sequence[BatchCallback]
    gradient_norms: bool
    progress: bool | None
    save_to: str | Path | None
    save_every: object
    on_progress: Callable[[int, int | None], object] | None = None
    trace: range | None = None  # the batches whose actions are recorded

    def __post_init__(self) -> None:
        _check_modes()
        whole_number("epochs", self.epochs, least=1)
        if self.max_steps is not None:
            whole_number("max_steps", self.max_steps, least=1)
        kind = type(self.loader).__name__
        if not isinstance(self.loader, Iterable):
            raise TypeError(f"loader is a {kind}: give something that can be iterated, of (input, target) pairs")
        if isgenerator(self.loader) and self.epochs > 1 and self.max_steps is None:
            raise ValueError(
                f"loader is a generator, which gives its batches once, but epochs={self.epochs}: give a loader that "
                "can be iterated once per epoch (a list, a DataLoader)"
            )
        if self.on_progress is not None:
            check_callable("on_progress", self.on_progress, "give a function of the batches begun and of their total")
        for name, sees in (("callbacks", "an EpochEnd"), ("batch_callbacks", "a BatchEnd")):
            for callback in of_type(name, getattr(self, name), Sequence, f"give a list of functions of {sees}"):
                if not callable(callback):
                    raise TypeError(f"{name} holds {callback!r}: give functions of {sees}")


def _check_modes() -> None:
    """Refuse modes of torch around a fit that other threads and processes would not have."""
    if not torch.is_grad_enabled():
        raise ValueError(
            "fit within torch.no_grad() or torch.inference_mode(), where nothing is learned: leave it first"
        )
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise ValueError(
            "fit within torch.autocast, which stages in other threads and processes would not see: leave it, and give "
            "Trainer(autocast=torch.bfloat16)"
        )


def passes(loader: Any, epochs: int | None, max_steps: int | None) -> int:
    """The number of passes over a loader: one by default, or as many as the steps may take.

    Example:
        >>> passes([1, 2, 3], None, None), passes([1, 2, 3], None, 7), passes(iter(()), None, 7), passes([1], 5, 3)
        (1, 3, 7, 5)
    """
    if epochs is not None or max_steps is None:
        return 1 if epochs is None else epochs
    try:
        return max(1, -(-max_steps // max(1, len(loader))))
    except TypeError:
        return max_steps
