"""A stage that is slow at random: for study, and without any influence on the result."""

from __future__ import annotations

import time

import torch

from freewheel._naps import Naps
from freewheel._seeds import seed_of
from freewheel.stage import Stage


class Straggler:
    """Makes all computing of some batches at one stage take (1 + factor) times as long.

    Which batches is drawn from a key of (seed, stage, batch): the same on every runtime and in every run.

    Args:
        stage: The stage.
        probability: Of a batch to be slow.
        factor: How much longer it takes, as a part of its own time.
    """

    def __init__(self, stage: Stage, probability: float, factor: float) -> None:
        self._stage, self._probability, self._factor = stage, probability, factor
        self._naps = Naps()

    @classmethod
    def of(cls, stage: Stage) -> Straggler | None:
        """The one that was asked for at this stage, if any was."""
        asked = (stage.config.slow or {}).get(stage.index)
        return None if asked is None else cls(stage, *asked)

    def hold_up(self, batch: int, started: float) -> None:
        """Called after an action that computed since `started`; sleeps if the batch is a slow one."""
        if self._stage.device.type == "cuda":  # what was launched must have ended, for its time to be known
            torch.cuda.current_stream(self._stage.device).synchronize()
        if is_slow(self._stage.config.seed, self._stage.index, self._stage.first_batch + batch, self._probability):
            self._naps.take(self._factor * (time.perf_counter() - started))


def is_slow(seed: int, stage: int, batch: int, probability: float) -> bool:
    """Whether a stage is slow with a batch, counted from the trainer's first.

    Example:
        >>> any(is_slow(0, 1, batch, 0.0) for batch in range(12)), all(is_slow(0, 1, batch, 1.0) for batch in range(12))
        (False, True)
    """
    return seed_of(seed, stage, batch) < probability * 2**63
