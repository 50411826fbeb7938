"""The trainer: fit, evaluate, callbacks and history."""

from freewheel.trainer._alignment import alignment
from freewheel.trainer._callbacks import Callback, EpochEnd, StageSequence
from freewheel.trainer._history import Epoch, History, LayerUpdates, Score
from freewheel.trainer._trainer import Trainer

__all__ = [
    "Callback",
    "Epoch",
    "EpochEnd",
    "History",
    "LayerUpdates",
    "Score",
    "StageSequence",
    "Trainer",
    "alignment",
]
