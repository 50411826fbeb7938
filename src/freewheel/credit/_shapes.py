"""What heads and predictors need to know of an activation, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Kind = tuple[int, int]  # dimensions, width: channels of images, features of positions, all numbers of anything else


def kind_of(tensor: Tensor) -> Kind:
    """The number of dimensions and the width of a tensor whose first dimension is the samples.

    Example:
        >>> kind_of(torch.zeros(5, 3, 8, 8)), kind_of(torch.zeros(5, 7, 16)), kind_of(torch.zeros(5, 2, 2, 2, 2))
        ((4, 3), (3, 16), (2, 16))
    """
    if tensor.dim() == 4:
        return 4, tensor.shape[1]
    if tensor.dim() == 3:
        return 3, tensor.shape[2]
    return 2, tensor[:1].numel()


def perceptron(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them, `layers` of them hidden.

    Example:
        >>> [tuple(p.shape) for p in perceptron(4, 8, 1, 2).parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """
    widths = [inputs, *[hidden] * layers]
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(widths[-1], outputs))


def check_factory(optimizer: object) -> None:
    """The optimizer of heads or predictors is a factory, as the trainer's is."""
    if optimizer is not None and (isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer)):
        raise TypeError(
            f"optimizer={optimizer!r}: give a factory such as functools.partial(torch.optim.Adam, lr=0.001), or None "
            "for the trainer's"
        )


def network_outputs(stages: Sequence[nn.Module]) -> int:
    """The outputs of the network's last linear or convolutional layer."""
    layers = [part for stage in stages for part in stage.modules()]
    widths = [getattr(layer, "out_features", getattr(layer, "out_channels", None)) for layer in layers]
    known = [width for width in widths if width is not None]
    if not known:
        raise ValueError("classes: no layer of the network says how many outputs it has; give classes")
    return known[-1]
