"""The folder of a run: what is trained, a line for each epoch, final figures, checkpoints, and a trace."""

from freewheel.runs._facts import facts_of as facts_of
from freewheel.runs._layout import (
    CHECKPOINTS as CHECKPOINTS,
    FACTS as FACTS,
    TRACE as TRACE,
    WEIGHTS as WEIGHTS,
    check_folder as check_folder,
    default_parent as default_parent,
    each_once as each_once,
    is_run as is_run,
    new_folder as new_folder,
    newest_run as newest_run,
)
from freewheel.runs._lock import take_lock as take_lock
from freewheel.runs._recorder import RunRecorder as RunRecorder
from freewheel.runs._run import Run as Run, Status as Status
from freewheel.runs._stamp import Stamp as Stamp, stamp_of as stamp_of
