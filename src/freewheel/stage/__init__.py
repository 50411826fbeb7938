"""Stages: a module, its optimizer, its weight versions and its random numbers. The credit decides how it learns."""

from freewheel.stage._blueprint import Blueprint, StageOptions, blueprints, factory_of
from freewheel.stage._random import SeededDraws
from freewheel.stage._recurrent import Recurrent, check_split_along_time, recurrent_layers
from freewheel.stage._stage import Stage, Tree, Verbs, add
from freewheel.stage._state import load_buffers, load_tensors, restored_buffers, scratch_buffers, tensors_of
from freewheel.stage._trees import (
    Shape,
    copies,
    described,
    flatten,
    homes,
    map_tensors,
    memory,
    tensors_among,
    to_device,
    unflatten,
    versions,
)
from freewheel.stage._weights import Current, Live, Stash, WeightVersions

__all__ = [
    "Blueprint",
    "Current",
    "Live",
    "Recurrent",
    "SeededDraws",
    "Shape",
    "Stage",
    "StageOptions",
    "Stash",
    "Tree",
    "Verbs",
    "WeightVersions",
    "add",
    "blueprints",
    "check_split_along_time",
    "copies",
    "described",
    "factory_of",
    "flatten",
    "homes",
    "load_buffers",
    "load_tensors",
    "map_tensors",
    "memory",
    "recurrent_layers",
    "restored_buffers",
    "scratch_buffers",
    "tensors_among",
    "tensors_of",
    "to_device",
    "unflatten",
    "versions",
]
