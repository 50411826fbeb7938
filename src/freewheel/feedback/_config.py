"""What the user chooses about feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from freewheel._errors import unknown

Signal = Literal["gradient", "error", "sign", "target"]
SIGNALS: tuple[Signal, ...] = ("gradient", "error", "sign", "target")


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """Fixed random feedback weights, and what goes through them.

    Layers are the Linear and Conv2d layers of the whole network, counted from 0.

    Args:
        signal: `gradient`: the gradient goes from layer to layer, through weights in the shape of each layer's own
            (`fa`, under `credit="chain"`). `error`: the error at the output goes straight to the input of each layer
            (`dfa`); `sign`: its sign (`sdfa`); `target`: the target goes there instead (`drtp`), these three under
            `credit="feedback"`.
        bound: Feedback weights are drawn evenly from -bound to bound. By default it is He's, √(6 / n), where n is the
            number of weights that share a first index.
        own: Feedback weights of one's own, by the number of the layer; they are used as they are. Under `gradient` in
            the shape of the layer's weight; else (outputs of the network, *shape of a sample at the layer's input).

    Example:
        >>> Feedback(signal="error", bound=0.5)
        Feedback(signal='error', bound=0.5, own=None)
    """

    signal: Signal
    bound: float | None = None
    own: Mapping[int, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise unknown("signal", self.signal, SIGNALS)
        number = isinstance(self.bound, (int, float)) and not isinstance(self.bound, bool)
        if self.bound is not None and not (number and 0 < self.bound < math.inf):
            raise ValueError(f"bound={self.bound!r}: give the largest feedback weight, a number above 0")
        if self.own is None:
            return
        if not isinstance(self.own, Mapping):
            raise TypeError(
                f"own={self.own!r}: give feedback weights by the number of their layer, such as {{1: weights}}"
            )
        for number, weights in self.own.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"own has weights for layer {number!r}: layers are counted from 0")
            if not isinstance(weights, Tensor):
                raise TypeError(f"own[{number}] is a {type(weights).__name__}: give a tensor")
