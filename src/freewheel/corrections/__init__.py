"""Corrections: transforms of the gradient or the step, one file each, composed in the given order."""

from freewheel.corrections._correction import (
    Correction as Correction,
    Gradients as Gradients,
    Site as Site,
    State as State,
    Step as Step,
    map_gradients as map_gradients,
)
from freewheel.corrections._stage import StageCorrections as StageCorrections
from freewheel.corrections.accumulate import Accumulate as Accumulate
from freewheel.corrections.compensation import DelayCompensation as DelayCompensation
from freewheel.corrections.discrepancy import Discrepancy as Discrepancy
from freewheel.corrections.shrink import Shrink as Shrink
from freewheel.corrections.staleness import StalenessStep as StalenessStep
from freewheel.corrections.step_size import CurrentStepSize as CurrentStepSize

CORRECTIONS: dict[str, type[Correction]] = {
    "shrink": Shrink,
    "staleness-step": StalenessStep,
    "current-step-size": CurrentStepSize,
    "discrepancy": Discrepancy,
    "delay-compensation": DelayCompensation,
    "accumulate": Accumulate,
}
