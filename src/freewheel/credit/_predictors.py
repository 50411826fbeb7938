"""Predictors: the small networks that say what gradient a stage's output is going to get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel._errors import of_type, whole_number
from freewheel.credit._shapes import Kind, check_factory, perceptron

KERNEL = 5  # of the convolutions


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """The predictors of synthetic gradients: what `fw.Synthetic` and `fw.DNI` share.

    Args:
        hidden: Width of their hidden layers; by default that of the activation whose gradient they predict.
        layers: How many hidden layers they have; with 0 they are linear.
        labels: Whether they see the label, too.
        classes: How many labels there are; by default as many as the network's last linear or convolutional layer has
            outputs.
        optimizer: A factory for the predictors; by default the trainer's.
        lag: How many batches a stage learns from before it waits for the gradient of one; with 0 it waits for each.
    """

    hidden: int | None = None
    layers: int = 0
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
        check_factory(self.optimizer)


class Predictor(nn.Module):
    """For each tensor a network of its kind: convolutions for images, else a perceptron, for each position if any.

    Its last layer begins with zeros, so that nothing is learned from a prediction before there has been a fit. A label
    comes as more channels or features, one for each class.

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
        build = _convolutions if dimensions == 4 else perceptron
        net = build(width + self.classes, hidden, options.layers, width)
        for parameter in net[-1].parameters():
            nn.init.zeros_(parameter)
        return net

    def forward(self, tensors: Sequence[Tensor], target: Any) -> list[Tensor]:
        """For each tensor its gradient, times the number of samples."""
        return [self._one(net, tensor, target) for net, tensor in zip(self.nets, tensors)]

    def _one(self, net: nn.Module, tensor: Tensor, target: Any) -> Tensor:
        x = tensor if tensor.dim() in (3, 4) else tensor.reshape(tensor.shape[0], -1)
        if self.classes:
            x = torch.cat([x, self._labels(x, target)], dim=1 if x.dim() == 4 else -1)
        return net(x).reshape(tensor.shape)

    def _labels(self, x: Tensor, target: Any) -> Tensor:
        """The labels in the form of `x`: 1 for the class, 0 for the others."""
        if not isinstance(target, Tensor) or target.is_floating_point() or target.dim() not in (1, x.dim() - 1):
            came = f"{target.dtype} {tuple(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"labels=True, but the target is {came}: it must be whole numbers, one for each sample")
        marks = F.one_hot(target.long(), self.classes).to(x.dtype)
        if marks.dim() == x.dim():
            return marks
        if x.dim() == 4:
            return marks[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return marks[:, None].expand(-1, x.shape[1], -1)


def _convolutions(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """As `perceptron`, of convolutions that keep the size of an image."""
    widths = [inputs, *[hidden] * layers, outputs]
    made = [nn.Conv2d(a, b, KERNEL, padding=KERNEL // 2) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for conv in made[:-1] for part in (conv, nn.ReLU())], made[-1])
