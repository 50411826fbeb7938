"""Tangents: the random directions of forward gradients, drawn from keys, and the dual pass that carries them."""

from freewheel.tangents._activations import Perturber
from freewheel.tangents._compiled import FixedTangents, compiled
from freewheel.tangents._compiled_pass import CompiledPass, SplitDuals, signature_of
from freewheel.tangents._directions import Derivatives, Directions, PendingBatch, TangentKey, TangentSource
from freewheel.tangents._draw import Drawer
from freewheel.tangents._duals import AliasGuard, Dual, split_duals
from freewheel.tangents._level import dual, enter_level, leave_level
from freewheel.tangents._mode import DualMode, explained
from freewheel.tangents._options import TangentOptions
from freewheel.tangents._scale import Scale, check_patterns
from freewheel.tangents._transfer import Transfer
from freewheel.tangents.distributions import DISTRIBUTIONS, Distribution

__all__ = [
    "DISTRIBUTIONS",
    "AliasGuard",
    "CompiledPass",
    "Derivatives",
    "Directions",
    "Distribution",
    "Drawer",
    "Dual",
    "DualMode",
    "FixedTangents",
    "PendingBatch",
    "Perturber",
    "Scale",
    "SplitDuals",
    "TangentKey",
    "TangentOptions",
    "TangentSource",
    "Transfer",
    "check_patterns",
    "compiled",
    "dual",
    "enter_level",
    "explained",
    "leave_level",
    "signature_of",
    "split_duals",
]
