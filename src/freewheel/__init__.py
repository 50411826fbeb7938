"""Freewheel: train a network cut into K stages without making the stages wait for each other."""

from freewheel import data as data, models as models, recipes as recipes
from freewheel._config import RunConfig as RunConfig
from freewheel._metrics import accuracy as accuracy
from freewheel.corrections import (
    Accumulate as Accumulate,
    Correction as Correction,
    CurrentStepSize as CurrentStepSize,
    DelayCompensation as DelayCompensation,
    Discrepancy as Discrepancy,
    Shrink as Shrink,
    Site as Site,
    StalenessStep as StalenessStep,
    Step as Step,
    map_gradients as map_gradients,
)
from freewheel.credit import (
    CREDITS as CREDITS,
    Aligned as Aligned,
    Chain as Chain,
    Credit as Credit,
    Feedback as Feedback,
    Forward as Forward,
    Local as Local,
    Synthetic as Synthetic,
)
from freewheel.methods import (
    BP as BP,
    DDG as DDG,
    DFA as DFA,
    DGL as DGL,
    DNI as DNI,
    DRTP as DRTP,
    DSP as DSP,
    FA as FA,
    FDG as FDG,
    FGD as FGD,
    FGDDP as FGDDP,
    FGDMP as FGDMP,
    FR as FR,
    LAPSGD as LAPSGD,
    LPPSGD as LPPSGD,
    METHODS as METHODS,
    RACES as RACES,
    SDFA as SDFA,
    AsyncBU as AsyncBU,
    AsyncFGD as AsyncFGD,
    AsyncLU as AsyncLU,
    FGDSync as FGDSync,
    GPipe as GPipe,
    Hogwild as Hogwild,
    Method as Method,
    OneFOneB as OneFOneB,
    PipeDream as PipeDream,
    Pipeline as Pipeline,
    PipeMare as PipeMare,
    method as method,
    plan as plan,
)
from freewheel.plan import Plan as Plan, PlanError as PlanError
from freewheel.runs import Run as Run, RunRecorder as RunRecorder
from freewheel.runtime import RUNTIMES as RUNTIMES, LostError as LostError, StageError as StageError
from freewheel.split import Stages as Stages, split as split
from freewheel.stage import Recurrent as Recurrent
from freewheel.tangents import DISTRIBUTIONS as DISTRIBUTIONS, Distribution as Distribution, Transfer as Transfer
from freewheel.trace import Trace as Trace, TraceEvent as TraceEvent
from freewheel.trainer import (
    BatchEnd as BatchEnd,
    CSVLogger as CSVLogger,
    EarlyStopping as EarlyStopping,
    Epoch as Epoch,
    EpochEnd as EpochEnd,
    GradientDifference as GradientDifference,
    History as History,
    KeepBest as KeepBest,
    LayerUpdates as LayerUpdates,
    RaceTimes as RaceTimes,
    Score as Score,
    StageSequence as StageSequence,
    StopAt as StopAt,
    TensorBoard as TensorBoard,
    Trainer as Trainer,
    alignment as alignment,
    gradient_difference as gradient_difference,
    rebalance as rebalance,
)

__version__ = "0.1.0"
