"""Checkpoints of a running pipeline, everything in flight included.

A `CheckpointWriter` writes them: each stage its `StageSnapshot`, the caller the rest. A `Checkpoint` is one on disk,
found and verified, to be loaded into stages.
"""

from freewheel.checkpoint._checkpoint import (
    Checkpoint as Checkpoint,
    find as find,
    find_latest as find_latest,
    finished as finished,
)
from freewheel.checkpoint._files import DamagedError as DamagedError, File as File, write_text as write_text
from freewheel.checkpoint._manifest import (
    FitPosition as FitPosition,
    Manifest as Manifest,
    seal as seal,
    unseal as unseal,
)
from freewheel.checkpoint._settings import difference as difference, settings_of as settings_of
from freewheel.checkpoint._snapshot import Counts as Counts, StageSnapshot as StageSnapshot, full_names as full_names
from freewheel.checkpoint._writer import (
    CheckpointWriter as CheckpointWriter,
    Every as Every,
    check_folder as check_folder,
    check_saving as check_saving,
)
