"""Corrections: transforms of the gradient or the step, one file each, composed in the given order."""

from freewheel.corrections._correction import Correction, Gradients, Site, State, Step, map_gradients
from freewheel.corrections._stage import StageCorrections
from freewheel.corrections.accumulate import Accumulate
from freewheel.corrections.compensation import DelayCompensation
from freewheel.corrections.discrepancy import Discrepancy
from freewheel.corrections.shrink import Shrink
from freewheel.corrections.staleness import StalenessStep

CORRECTIONS: dict[str, type[Correction]] = {
    "shrink": Shrink,
    "staleness-step": StalenessStep,
    "discrepancy": Discrepancy,
    "delay-compensation": DelayCompensation,
    "accumulate": Accumulate,
}

__all__ = [
    "CORRECTIONS",
    "Accumulate",
    "Correction",
    "DelayCompensation",
    "Discrepancy",
    "Gradients",
    "Shrink",
    "Site",
    "StageCorrections",
    "StalenessStep",
    "State",
    "Step",
    "map_gradients",
]
