"""Checkpoints of a running pipeline, everything in flight included.

A `CheckpointWriter` writes them: each stage its `StageSnapshot`, the caller the rest. A `Checkpoint` is one on disk,
found and verified, to be loaded into stages.
"""

from freewheel.checkpoint._checkpoint import Checkpoint, find, find_latest, finished
from freewheel.checkpoint._files import DamagedError, File, write_text
from freewheel.checkpoint._manifest import FitPosition, Manifest, seal, unseal
from freewheel.checkpoint._settings import difference, settings_of
from freewheel.checkpoint._snapshot import Counts, StageSnapshot, full_names
from freewheel.checkpoint._writer import CheckpointWriter, Every, check_folder, check_saving

__all__ = [
    "Checkpoint",
    "CheckpointWriter",
    "Counts",
    "DamagedError",
    "Every",
    "File",
    "FitPosition",
    "Manifest",
    "StageSnapshot",
    "check_folder",
    "check_saving",
    "difference",
    "find",
    "find_latest",
    "finished",
    "full_names",
    "seal",
    "settings_of",
    "unseal",
    "write_text",
]
