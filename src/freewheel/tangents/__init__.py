"""Tangents: the directions of forward gradients, drawn from keys, and the pass of dual numbers that carries them."""

from freewheel.tangents._activations import Mover
from freewheel.tangents._compiled import Given, compiled
from freewheel.tangents._config import DISTRIBUTIONS, PERTURBS, Direction, Distribution, Perturb, Tangents
from freewheel.tangents._directions import Derivatives, Directions, Place, Source, Waiting
from freewheel.tangents._draw import Drawer
from freewheel.tangents._level import dual, enter_level, leave_level
from freewheel.tangents._mode import DualMode, explained
from freewheel.tangents._scale import Scale, check_patterns
from freewheel.tangents._transfer import Transfer

__all__ = [
    "DISTRIBUTIONS",
    "PERTURBS",
    "Derivatives",
    "Direction",
    "Directions",
    "Distribution",
    "Drawer",
    "DualMode",
    "Given",
    "Mover",
    "Perturb",
    "Place",
    "Scale",
    "Source",
    "Tangents",
    "Transfer",
    "Waiting",
    "check_patterns",
    "compiled",
    "dual",
    "enter_level",
    "explained",
    "leave_level",
]
