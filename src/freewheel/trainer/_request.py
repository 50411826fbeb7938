"""The arguments of `Trainer.fit`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freewheel._errors import of_type, whole_number
from freewheel.trainer._callbacks import BatchCallback, Callback

ENDLESS = sys.maxsize  # epochs, where the number of steps ends a fit


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

    def __post_init__(self) -> None:
        whole_number("epochs", self.epochs, least=1)
        if self.max_steps is not None:
            whole_number("max_steps", self.max_steps, least=1)
        kind = type(self.loader).__name__
        if not isinstance(self.loader, Iterable):
            raise TypeError(f"loader is a {kind}: give something that can be iterated, of (input, target) pairs")
        for name, sees in (("callbacks", "an EpochEnd"), ("batch_callbacks", "a BatchEnd")):
            for callback in of_type(name, getattr(self, name), Sequence, f"give a list of functions of {sees}"):
                if not callable(callback):
                    raise TypeError(f"{name} holds {callback!r}: give functions of {sees}")
