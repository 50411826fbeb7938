"""Cut a model into stages of equal cost."""

from __future__ import annotations

from freewheel.split._report import SplitReport, Stages
from freewheel.split._split import split

__all__ = ["SplitReport", "Stages", "split"]
