"""Checkpoints: all that a run is, everything in flight included, in files that are checked before they are believed."""

from freewheel.checkpoint._files import GENERATORS, DamagedError, File, read_tensors, write_generators, write_text
from freewheel.checkpoint._folder import Found, find, finished, publish
from freewheel.checkpoint._manifest import Manifest, Progress, seal, unseal
from freewheel.checkpoint._names import full_names, spread
from freewheel.checkpoint._saver import Counts, Restart, Saved, Saver, StagePart, file_name
from freewheel.checkpoint._settings import difference, settings_of
from freewheel.checkpoint._writers import writing

__all__ = [
    "GENERATORS",
    "Counts",
    "DamagedError",
    "File",
    "Found",
    "Manifest",
    "Progress",
    "Restart",
    "Saved",
    "Saver",
    "StagePart",
    "difference",
    "file_name",
    "find",
    "finished",
    "full_names",
    "publish",
    "read_tensors",
    "seal",
    "settings_of",
    "spread",
    "unseal",
    "write_generators",
    "write_text",
    "writing",
]
