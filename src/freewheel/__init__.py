"""Freewheel: train a network cut into K stages without making the stages wait for each other."""

from freewheel import data, models
from freewheel.methods import (
    BP,
    DDG,
    DSP,
    FDG,
    FGD,
    FGDDP,
    FGDMP,
    FR,
    METHODS,
    AsyncFGD,
    FGDSync,
    GPipe,
    Method,
    OneFOneB,
    PipeDream,
    Pipeline,
    PipeMare,
    method,
    plan,
)
from freewheel.plan import Plan, PlanError
from freewheel.runtime import RUNTIMES, LostError, StageError
from freewheel.split import Stages, split
from freewheel.stage import Accumulate, Correction, DelayCompensation, Discrepancy, Recurrent, Shrink, StalenessStep
from freewheel.tangents import Tangents, Transfer
from freewheel.trainer import Chain, Epoch, EpochEnd, History, Score, Trainer, accuracy

__version__ = "0.1.0"

__all__ = [
    "BP",
    "DDG",
    "DSP",
    "FDG",
    "FGD",
    "FGDDP",
    "FGDMP",
    "FR",
    "METHODS",
    "RUNTIMES",
    "Accumulate",
    "AsyncFGD",
    "Chain",
    "Correction",
    "DelayCompensation",
    "Discrepancy",
    "Epoch",
    "EpochEnd",
    "FGDSync",
    "GPipe",
    "History",
    "LostError",
    "Method",
    "OneFOneB",
    "PipeDream",
    "PipeMare",
    "Pipeline",
    "Plan",
    "PlanError",
    "Recurrent",
    "Score",
    "Shrink",
    "StageError",
    "Stages",
    "StalenessStep",
    "Tangents",
    "Trainer",
    "Transfer",
    "accuracy",
    "data",
    "method",
    "models",
    "plan",
    "split",
]
