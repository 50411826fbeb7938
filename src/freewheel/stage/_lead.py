"""Step sizes that are ahead of the updates: a stage steps its scheduler for batches that it has only forwarded.

::

    delay 2      F0 F1 | B0 F2 | B1 F3 | B2 | B3 |
    step size           γ_2     γ_3     γ_4  γ_4       four batches: there is none after the last
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from freewheel.stage._state import step_scheduler

if TYPE_CHECKING:
    from freewheel.stage._stage import Stage


def lead(stage: Stage, pending: int, ends_epoch: Callable[[int], bool]) -> None:
    """Step the scheduler before an update, where the step size is that of the batch which the stage forwards.

    Args:
        stage: The stage.
        pending: The number of batches that it has forwarded and not learned from.
        ends_epoch: Says of a batch, counted from the one of this update, whether an epoch ends with it.
    """
    corrections = stage.corrections
    while corrections.leads and corrections.ahead < min(stage.delay, pending):
        ends, steps = ends_epoch(corrections.ahead), corrections.lead()
        if ends if stage.config.scheduler_every == "epoch" else steps:
            step_scheduler(stage.scheduler, early=True)


def repeat_lead(stage: Stage) -> None:
    """Do that before an update which a launcher repeats; no epoch ends near it."""
    if stage.corrections.leads:
        lead(stage, stage.corrections.ahead + 1, lambda ahead: False)
