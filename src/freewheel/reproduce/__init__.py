"""The experiments of the papers, measured again: `freewheel reproduce NAME`."""

from __future__ import annotations

from freewheel.reproduce._experiment import Cell as Cell, Experiment as Experiment
from freewheel.reproduce._figures import PAPERS as PAPERS, Figure as Figure, PaperTable as PaperTable, tables as tables
from freewheel.reproduce._report import CellReport as CellReport, Report as Report
from freewheel.reproduce._runner import reproduce as reproduce
from freewheel.reproduce._tasks import Outcome as Outcome, Task as Task, Watcher as Watcher
from freewheel.reproduce.experiments import EXPERIMENTS as EXPERIMENTS
