"""Input adaptation for networks designed for larger color images."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._errors import whole_number
from freewheel.models._check import CHW, image_shape


class Adapt(nn.Module):
    """Repeat the channels of an image and resize it (bilinear). It has no parameters.

    Args:
        repeat: the number of copies: 3 turns a gray image into red, green and blue.
        size: rows and columns of the output; None keeps those of the input.

    Example:
        >>> import torch
        >>> Adapt(repeat=3, size=64)(torch.ones(2, 1, 28, 28)).shape
        torch.Size([2, 3, 64, 64])
    """

    def __init__(self, *, repeat: int = 1, size: int | None = None) -> None:
        super().__init__()
        self.repeat = whole_number("repeat", repeat, least=1)
        self.size = None if size is None else whole_number("size", size, least=1)

    def forward(self, x: Tensor) -> Tensor:
        """Resize, then repeat."""
        if self.size is not None:
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        return x.repeat(1, self.repeat, 1, 1)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"repeat={self.repeat}, size={self.size}"


def adapted(in_shape: CHW, resize: int | None) -> tuple[OrderedDict[str, nn.Module], int]:
    """The first layers of a network, none or an `Adapt`, and their output channels.

    Example:
        >>> layers, channels = adapted((1, 28, 28), 64)
        >>> layers["adapt"], channels
        (Adapt(repeat=3, size=64), 3)
        >>> adapted((3, 32, 32), None)
        (OrderedDict(), 3)
    """
    if resize is not None:
        whole_number("resize", resize, least=1)
    channels = image_shape(in_shape)[0]
    repeat = 3 if channels == 1 else 1
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if repeat > 1 or resize is not None:
        layers["adapt"] = Adapt(repeat=repeat, size=resize)
    return layers, repeat * channels
