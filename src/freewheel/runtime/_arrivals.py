"""What has arrived at a stage for its next forwards: inputs, and targets where they are used, in micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.plan import Unit
from freewheel.runtime._micro_batches import MicroBatch, split_samples, split_time
from freewheel.runtime._wiring import input_name, target_name
from freewheel.stage import Stage


class Arrivals:
    """Inputs and targets of forwards to come.

    Args:
        stage: The stage.
        ends: The stage's ends of wires, by name.
    """

    def __init__(self, stage: Stage, ends: Mapping[str, Any]) -> None:
        self._schedule = stage.schedule
        self.inputs = ends[input_name(stage.replica)] if stage.index == 0 else None
        self.targets = ends.get(target_name(stage.replica, stage.index))
        self._received: dict[Unit, Any] = {}  # activations, and at the first stage the batches
        self._expected: dict[Unit, MicroBatch] = {}  # targets, sizes and shares of the replica's samples
        self._weight = 1.0  # of the last batch: the share of it that these samples are

    def __bool__(self) -> bool:
        return bool(self._received or self._expected)

    def add(self, unit: Unit, x: Any) -> None:
        """Add the activation of a stage before."""
        self._received[unit] = x

    def fetch(self, batch: int) -> None:
        """Take a batch from the feed: the input at the first stage, the target where it is used."""
        along, micro = self._schedule.along, self._schedule.micro
        if self.inputs is not None:
            x, size = self.inputs.get()
            inputs = split_time(x, size, micro, "input") if along else split_samples(x, size, micro, "input")
            for j, (micro_batch, _, _) in enumerate(inputs):
                self._received[batch, j] = micro_batch
        if self.targets is not None:
            y, size, length, self._weight = self.targets.get()
            over = self._schedule.over_time
            if along:
                targets = split_time(y, size, micro, "target", length, over)
            else:
                targets = split_samples(y, size, micro, "target")
            for j, micro_batch in enumerate(targets):
                self._expected[batch, j] = micro_batch

    def take(self, unit: Unit) -> tuple[Any, Any, int, float, float]:
        """Take the input, target, size, share and weight of a micro-batch, as `Stage.forward` gets them."""
        return self._received.pop(unit), *self._expected.pop(unit, (None, 0, 1.0)), self._weight
