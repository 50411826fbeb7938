"""Stages: a module, its optimizer, its weight versions, and the corrections of its gradient and step."""

from freewheel.stage._corrections import (
    Accumulate,
    Correction,
    DelayCompensation,
    Discrepancy,
    Gradients,
    Hooks,
    Shrink,
    Site,
    StalenessStep,
)
from freewheel.stage._random import seed_of
from freewheel.stage._stage import Loss, Stage, StageOptions
from freewheel.stage._state import load_tensors
from freewheel.stage._trees import homes, to_device

__all__ = [
    "Accumulate",
    "Correction",
    "DelayCompensation",
    "Discrepancy",
    "Gradients",
    "Hooks",
    "Loss",
    "Shrink",
    "Site",
    "Stage",
    "StageOptions",
    "StalenessStep",
    "homes",
    "load_tensors",
    "seed_of",
    "to_device",
]
