"""Tracing launches that are repeated without being interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from freewheel.runtime._repeat import Script
from freewheel.stage import Stage
from freewheel.trace import StreamTracer, TimeBase


class ScriptTracer(StreamTracer):
    """Records by events that a script records again whenever it repeats a batch.

    Args:
        stage: The stage.
        batches: The numbers of the batches that are recorded.
        script: What is launched for each batch.
        base: What the times of all stages are measured from.
    """

    def __init__(self, stage: Stage, batches: range, script: Script, base: TimeBase) -> None:
        super().__init__(stage.index, stage.replica, batches, base)
        self._script = script

    def begin(self, name: str, batch: int, micro: int = 0, version: int | None = None) -> None:
        """Note that an action begins."""
        gap = None if version is None else batch + self.skipped - version
        self._script.do(self._begin, name, batch - self._script.batch, micro, gap)

    def end(self) -> None:
        """Note that the action that began last has ended."""
        self._script.do(super().end)

    def numbers(self, numbers: Iterator[int]) -> Iterator[int]:
        """The same numbers of batches; batches may be repeated while one is waited for, so that is not recorded."""
        return numbers

    def _begin(self, name: str, ahead: int, micro: int, gap: Any) -> None:
        batch = self._script.batch + ahead
        super().begin(name, batch, micro, None if gap is None else batch + self.skipped - gap)


def tracers(script: Script, batches: range | None, device: torch.device) -> Callable[[Stage], ScriptTracer | None]:
    """Return what makes the tracer of a stage, if batches are traced; the times of all are measured from one event."""
    if batches is None:
        return lambda stage: None
    base = TimeBase.of(device)
    return lambda stage: ScriptTracer(stage, batches, script, base)
