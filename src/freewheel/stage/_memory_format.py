"""The memory format of convolutions on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


def store_channels_last(modules: Iterable[nn.Module]) -> None:
    """Store the weights of convolutions on GPUs channels-last, as `Module.to(memory_format=torch.channels_last)` does.

    The kernels of such a network read and write its activations in this format, too. With the other one, cuDNN converts
    before and after most convolutions, and its deterministic algorithms are several times slower.

    Example:
        >>> layer = nn.Conv2d(3, 8, 3)
        >>> store_channels_last([layer])
        >>> layer.weight.is_contiguous()  # not on a GPU
        True
    """
    for module in modules:
        for child in module.modules():
            if isinstance(child, CONVOLUTIONS) and all(p.is_cuda for p in child.parameters()):
                child.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
