"""Building blocks of heads and predictors: kinds of activations, perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from freewheel._errors import check_callable

Kind = tuple[int, int]  # dimensions, width: channels of images, features of positions, otherwise all elements


def kind_of(tensor: Tensor) -> Kind:
    """Return the number of dimensions and the width of a tensor whose first dimension is the samples.

    Example:
        >>> import torch
        >>> kind_of(torch.zeros(5, 3, 8, 8)), kind_of(torch.zeros(5, 7, 16)), kind_of(torch.zeros(5, 2, 2, 2, 2))
        ((4, 3), (3, 16), (2, 16))
    """
    if tensor.is_complex():
        raise TypeError(
            "a stage passes on complex numbers, which heads and predictors cannot take: pass on torch.view_as_real(x), "
            "or train with a method of the chain rule, such as 'pipedream'"
        )
    if tensor.dim() == 4:
        return 4, tensor.shape[1]
    if tensor.dim() == 3:
        return 3, tensor.shape[2]
    return 2, tensor[:1].numel()


def perceptron(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """Build linear layers with ReLU between them, `layers` of them hidden.

    Example:
        >>> [tuple(p.shape) for p in perceptron(4, 8, 1, 2).parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """
    widths = [inputs, *[hidden] * layers]
    modules = [module for a, b in pairwise(widths) for module in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(widths[-1], outputs))


def check_factory(optimizer: object) -> None:
    """Reject an optimizer of heads or predictors that is neither a factory nor None."""
    if optimizer is not None:
        hint = "give a factory such as functools.partial(torch.optim.Adam, lr=0.001), or None for the trainer's"
        check_callable("optimizer", optimizer, hint)


def network_outputs(stages: Sequence[nn.Module]) -> int:
    """Return the number of outputs of the network's last linear or convolutional layer."""
    layers = [layer for stage in stages for layer in stage.modules()]
    widths = [getattr(layer, "out_features", getattr(layer, "out_channels", None)) for layer in layers]
    known = [width for width in widths if width is not None]
    if not known:
        raise ValueError("classes=None: no layer of the network has a known number of outputs; give classes")
    return known[-1]
