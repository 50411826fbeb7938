"""Tangents: the random directions of forward gradients, drawn from keys, and the dual pass that carries them."""

from freewheel.tangents._activations import Perturber as Perturber
from freewheel.tangents._compiled import (
    FixedTangents as FixedTangents,
    compiled as compiled,
    compiled_function as compiled_function,
)
from freewheel.tangents._compiled_pass import (
    CompiledPass as CompiledPass,
    SplitDuals as SplitDuals,
    signature_of as signature_of,
)
from freewheel.tangents._counted import CountedTangents as CountedTangents
from freewheel.tangents._directions import (
    Derivatives as Derivatives,
    Directions as Directions,
    Passed as Passed,
    PendingBatch as PendingBatch,
    TangentKey as TangentKey,
    Tangents as Tangents,
    TangentSource as TangentSource,
)
from freewheel.tangents._draw import Drawer as Drawer
from freewheel.tangents._duals import AliasGuard as AliasGuard, Dual as Dual, split_duals as split_duals
from freewheel.tangents._level import dual as dual, enter_level as enter_level, leave_level as leave_level
from freewheel.tangents._mode import DualMode as DualMode, explained as explained
from freewheel.tangents._options import TangentOptions as TangentOptions
from freewheel.tangents._scale import Scale as Scale, check_patterns as check_patterns
from freewheel.tangents._transfer import Transfer as Transfer
from freewheel.tangents.distributions import DISTRIBUTIONS as DISTRIBUTIONS, Distribution as Distribution
