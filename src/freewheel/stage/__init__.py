"""Stages: a module, its optimizer, its weight versions, and the corrections of its gradient and step."""

from freewheel.stage._chain import ChainStage
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
from freewheel.stage._feedback import AlignedStage, FeedbackStage, Layers
from freewheel.stage._forward import Dual, ForwardStage
from freewheel.stage._heads import DRAWS, Draw, Heads
from freewheel.stage._local import LocalStage
from freewheel.stage._owned import HeadedStage
from freewheel.stage._predictors import Predictors
from freewheel.stage._recurrent import Recurrent
from freewheel.stage._stage import Loss, Stage, StageOptions
from freewheel.stage._state import load_buffers, load_tensors, tensors_of
from freewheel.stage._synthetic import SyntheticStage
from freewheel.stage._trees import homes, to_device

__all__ = [
    "DRAWS",
    "Accumulate",
    "AlignedStage",
    "ChainStage",
    "Correction",
    "DelayCompensation",
    "Discrepancy",
    "Draw",
    "Dual",
    "FeedbackStage",
    "ForwardStage",
    "Gradients",
    "HeadedStage",
    "Heads",
    "Hooks",
    "Layers",
    "LocalStage",
    "Loss",
    "Predictors",
    "Recurrent",
    "Shrink",
    "Site",
    "Stage",
    "StageOptions",
    "StalenessStep",
    "SyntheticStage",
    "homes",
    "load_buffers",
    "load_tensors",
    "tensors_of",
    "to_device",
]
