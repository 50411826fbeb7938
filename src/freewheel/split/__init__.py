"""Cut a model into stages of equal cost."""

from __future__ import annotations

from freewheel.split._recut import recut as recut, scaled as scaled
from freewheel.split._report import SplitReport as SplitReport, Stages as Stages
from freewheel.split._split import split as split
from freewheel.split._stages import borrowed as borrowed, read_directly as read_directly
