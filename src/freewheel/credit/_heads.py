"""Heads: the small networks by which stages learn from losses of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel._errors import one_of, whole_number
from freewheel.credit._shapes import Kind, check_factory, perceptron

Draw = Literal["fifo", "lifo", "random"]
DRAWS: tuple[Draw, ...] = ("fifo", "lifo", "random")


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """The heads of local learning: what `fw.Local` and `fw.DGL` share.

    Args:
        pool: Images are averaged to a grid of `pool` by `pool` before the perceptron.
        hidden: Width of the perceptron's hidden layers.
        layers: How many hidden layers it has; with 0 it is linear.
        classes: How many outputs it has; by default as many as the network's last linear or convolutional layer.
        optimizer: A factory for the heads; by default the trainer's.
        replay: How many of the last batches a stage behind the first keeps, to learn from one of them at a time; 0
            keeps none, and the stage learns from what has just come.
        draw: Which one: the oldest (`fifo`), the newest (`lifo`), or any (`random`, from the seed).
    """

    pool: int = 2
    hidden: int = 128
    layers: int = 1
    classes: int | None = None
    optimizer: OptimizerFactory | None = None
    replay: int = 0
    draw: Draw = "random"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool, least=1)
        whole_number("hidden", self.hidden, least=1)
        whole_number("layers", self.layers, least=0)
        whole_number("replay", self.replay, least=0)
        if self.classes is not None:
            whole_number("classes", self.classes, least=1)
        check_factory(self.optimizer)
        one_of("draw", self.draw, DRAWS)


class Head(nn.Module):
    """Pooling, then a perceptron, over all that a stage makes and passes on.

    Images are averaged to a grid, positions of a sequence are averaged; where every position has a target, each has an
    output, classes first.

    Example:
        >>> head = Head([(4, 3), (2, 5)], HeadOptions(pool=2, hidden=7), classes=10)
        >>> head([torch.zeros(6, 3, 8, 8), torch.zeros(6, 5)], torch.zeros(6)).shape
        torch.Size([6, 10])
        >>> head = Head([(3, 4)], HeadOptions(), classes=9)
        >>> head([torch.zeros(6, 5, 4)], torch.zeros(6)).shape, head([torch.zeros(6, 5, 4)], torch.zeros(6, 5)).shape
        (torch.Size([6, 9]), torch.Size([6, 9, 5]))
    """

    def __init__(self, kinds: Sequence[Kind], options: HeadOptions, classes: int) -> None:
        super().__init__()
        self.pool = options.pool
        self.positions = all(dimensions == 3 for dimensions, _ in kinds)
        width = sum(width * (options.pool**2 if dimensions == 4 else 1) for dimensions, width in kinds)
        self.layers = perceptron(width, options.hidden, options.layers, classes)

    def forward(self, tensors: Sequence[Tensor], target: Any) -> Tensor:
        """What the network's output would be."""
        first = tensors[0]
        if self.positions and isinstance(target, Tensor) and target.shape[:2] == first.shape[:2]:
            return self.layers(torch.cat(list(tensors), dim=2)).transpose(1, 2)
        return self.layers(torch.cat([self._pooled(tensor) for tensor in tensors], dim=1))

    def _pooled(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 4:
            tensor = F.adaptive_avg_pool2d(tensor, self.pool)
        elif tensor.dim() == 3:
            tensor = tensor.mean(1)
        return tensor.reshape(tensor.shape[0], -1)
