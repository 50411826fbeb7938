"""Predictors: the small networks that predict the gradient of a stage's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel._errors import of_type, whole_number
from freewheel.credit._shapes import Kind, check_factory, check_norm, convolutions, perceptron
from freewheel.stage import described

KERNEL = 5  # of the convolutions


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """The options of gradient predictors, shared by `fw.Synthetic` and `fw.DNI`.

    Args:
        hidden: Width of the hidden layers; by default that of the activation whose gradient is predicted.
        layers: Number of hidden layers; 0 makes them linear.
        norm: Whether hidden layers have BatchNorm. It normalizes by the batch, and its running statistics are those of
            the fits.
        labels: Whether predictors also see the label.
        classes: Number of labels; by default the outputs of the network's last linear or convolutional layer.
        optimizer: The optimizer factory of the predictors; by default the trainer's.
        lag: Updates between the update of a batch and the fit to its gradient; with 0 a stage waits for each.
    """

    hidden: int | None = None
    layers: int = 0
    norm: bool = False
    labels: bool = False
    classes: int | None = None
    optimizer: OptimizerFactory | None = None
    lag: int = 1

    def __post_init__(self) -> None:
        for name, value in (("hidden", self.hidden), ("classes", self.classes)):
            if value is not None:
                whole_number(name, value, least=1)
        whole_number("layers", self.layers, least=0)
        whole_number("lag", self.lag, least=0)
        of_type("labels", self.labels, bool, "give True or False")
        check_norm(self.norm, self.layers)
        check_factory(self.optimizer)


class Predictor(nn.Module):
    """A network per tensor: convolutions for images, otherwise a perceptron, applied to each position if any.

    The last layer starts with zeros, so nothing is learned before the first fit. Labels are one-hot features.

    Example:
        >>> predictor = Predictor([(4, 3), (2, 6)], PredictorOptions(labels=True), classes=10)
        >>> given = [torch.ones(5, 3, 8, 8), torch.ones(5, 6)]
        >>> [(tuple(t.shape), bool(t.any())) for t in predictor(given, torch.arange(5))]
        [((5, 3, 8, 8), False), ((5, 6), False)]
    """

    def __init__(self, kinds: Sequence[Kind], options: PredictorOptions, classes: int) -> None:
        super().__init__()
        self.classes = classes if options.labels else 0
        self.nets = nn.ModuleList([self._net(kind, options) for kind in kinds])

    def _net(self, kind: Kind, options: PredictorOptions) -> nn.Sequential:
        dimensions, width = kind
        hidden = options.hidden or width
        build = partial(convolutions, kernel=KERNEL) if dimensions == 4 else perceptron
        net = build(width + self.classes, hidden, options.layers, width, norm=options.norm)
        for parameter in net[-1].parameters():
            nn.init.zeros_(parameter)
        return net

    def forward(self, tensors: Sequence[Tensor], target: Any) -> list[Tensor]:
        """Predict the gradient of each tensor, times the number of samples."""
        return [self._one(net, tensor, target) for net, tensor in zip(self.nets, tensors)]

    def _one(self, net: nn.Module, tensor: Tensor, target: Any) -> Tensor:
        x = tensor if tensor.dim() in (3, 4) else tensor.reshape(tensor.shape[0], -1)
        if self.classes:
            x = torch.cat([x, self._labels(x, target)], dim=1 if x.dim() == 4 else -1)
        return net(x).reshape(tensor.shape)

    def _labels(self, x: Tensor, target: Any) -> Tensor:
        """Return the one-hot labels in the form of `x`."""
        if not isinstance(target, Tensor) or target.is_floating_point() or target.dim() not in (1, x.dim() - 1):
            raise TypeError(f"labels=True, but the target is {described(target)}: it must be a class for each sample")
        marks = F.one_hot(target.long(), self.classes).to(x.dtype)
        if x.dim() == 4 and marks.shape[1:-1] == x.shape[2:]:
            return marks.movedim(-1, 1)
        if marks.dim() == x.dim() and x.dim() != 4:
            return marks
        if target.dim() > 1:
            raise TypeError(
                f"labels=True, but the target is {described(target)}: it does not fit an output {tuple(x.shape)}"
            )
        if x.dim() == 4:
            return marks[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return marks[:, None].expand(-1, x.shape[1], -1)
