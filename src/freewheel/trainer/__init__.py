"""The trainer: fit, evaluate, callbacks and history."""

from freewheel.trainer._alignment import alignment
from freewheel.trainer._checks import check_slow
from freewheel.trainer._evaluate import accuracy
from freewheel.trainer._fit import Callback, Chain, EpochEnd
from freewheel.trainer._history import Epoch, History, LayerUpdates, Score
from freewheel.trainer._trainer import Trainer

__all__ = [
    "Callback",
    "Chain",
    "Epoch",
    "EpochEnd",
    "History",
    "LayerUpdates",
    "Score",
    "Trainer",
    "accuracy",
    "alignment",
    "check_slow",
]
