"""Stages that are slow at random, for experiments; the result does not change."""

from __future__ import annotations

import time

import torch

from freewheel._naps import Naps
from freewheel._seeds import seed_of
from freewheel.stage import Stage


class Straggler:
    """Makes all compute actions of some batches at one stage take (1 + factor) times as long.

    The batches are drawn by (seed, stage, batch): the same ones on every runtime and in every run.
    """

    def __init__(self, stage: Stage, probability: float, factor: float) -> None:
        self._stage, self._probability, self._factor = stage, probability, factor
        self._naps = Naps()

    @classmethod
    def of(cls, stage: Stage) -> Straggler | None:
        """The straggler that the options give this stage, if any."""
        asked = (stage.config.slow or {}).get(stage.index)
        return None if asked is None else cls(stage, *asked)

    def hold_up(self, batch: int, started: float) -> None:
        """Sleep if the batch is a slow one; called after an action that began at `started`."""
        if self._stage.device.type == "cuda":  # wait for the kernels, so that their time counts
            torch.cuda.current_stream(self._stage.device).synchronize()
        if is_slow(self._stage.config.seed, self._stage.index, self._stage.first_batch + batch, self._probability):
            self._naps.take(self._factor * (time.perf_counter() - started))


def is_slow(seed: int, stage: int, batch: int, probability: float) -> bool:
    """Whether a stage is slow with a batch; batches count from the trainer's first.

    Example:
        >>> any(is_slow(0, 1, batch, 0.0) for batch in range(12)), all(is_slow(0, 1, batch, 1.0) for batch in range(12))
        (False, True)
    """
    return seed_of(seed, stage, batch) < probability * 2**63
