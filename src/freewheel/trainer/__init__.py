"""The trainer: fit, evaluate, callbacks and history."""

from freewheel.trainer._alignment import alignment as alignment
from freewheel.trainer._callbacks import (
    BatchEnd as BatchEnd,
    Callback as Callback,
    EpochEnd as EpochEnd,
    StageSequence as StageSequence,
)
from freewheel.trainer._difference import (
    GradientDifference as GradientDifference,
    gradient_difference as gradient_difference,
)
from freewheel.trainer._history import (
    Epoch as Epoch,
    History as History,
    LayerUpdates as LayerUpdates,
    RaceTimes as RaceTimes,
    Reached as Reached,
    Score as Score,
)
from freewheel.trainer._loggers import CSVLogger as CSVLogger, TensorBoard as TensorBoard
from freewheel.trainer._monitor import EarlyStopping as EarlyStopping, KeepBest as KeepBest, StopAt as StopAt
from freewheel.trainer._rebalance import rebalance as rebalance
from freewheel.trainer._trainer import Trainer as Trainer
