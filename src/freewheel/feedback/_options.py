"""The options of fixed random feedback weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from freewheel._errors import number, of_type, whole_number


@dataclass(frozen=True, kw_only=True)
class FeedbackOptions:
    """Fixed random feedback weights. Layers are the Linear and Conv2d layers of the whole network, counted from 0.

    Args:
        bound: Feedback weights are uniform in ±bound. By default it is He's, √(6 / n), where n is the number of weights
            that share a first index.
        own: Given feedback weights by layer number, instead of random ones: in the shape of the layer's weight under
            `fw.Aligned`, otherwise (outputs of the network, *shape of a sample at the layer's input).
    """

    bound: float | None = None
    own: Mapping[int, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            number("bound", self.bound, above=0, hint="the largest feedback weight")
        hint = "give feedback weights by layer number, such as {1: weights}"
        for layer, weights in of_type("own", self.own or {}, Mapping, hint).items():
            whole_number("own: layer", layer, least=0)
            of_type(f"own[{layer}]", weights, Tensor, "give a tensor")
