"""Heads: the small networks of local losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._config import OptimizerFactory
from freewheel._errors import check_callable, one_of, whole_number
from freewheel.credit._shapes import Kind, check_factory, check_norm, perceptron, reduced

Draw = Literal["fifo", "lifo", "random"]
REDUCTION = 4  # of rows and columns before the convolutions of a head
DRAWS: tuple[Draw, ...] = ("fifo", "lifo", "random")


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """The options of heads, shared by `fw.Local` and `fw.DGL`.

    Args:
        pool: Images are average-pooled to a grid of `pool` by `pool` before the perceptron.
        hidden: Width of the perceptron's hidden layers; None is that of its input.
        layers: Number of hidden layers; 0 makes it linear.
        convs: Number of 1x1 convolutions with ReLU before all that, on images averaged to a quarter of their rows and
            columns. `convs=3, layers=3, hidden=None, norm=True` is the MLP-SR-aux of the paper.
        norm: Whether these convolutions and the hidden layers have BatchNorm.
        classes: Number of outputs; by default that of the network's last linear or convolutional layer.
        heads: A function of a stage's number that makes its head, a module that maps the stage's output to what the
            loss takes; pooling and a perceptron by default.
        optimizer: The optimizer factory of the heads; by default the trainer's.
        replay: Size in batches of the replay buffer of each stage after the first; 0 learns from the newest batch.
        draw: The batch to replay: the oldest (`fifo`), the newest (`lifo`), or `random`, from the seed.
    """

    pool: int = 2
    hidden: int | None = 128
    layers: int = 1
    convs: int = 0
    norm: bool = False
    classes: int | None = None
    heads: Callable[[int], nn.Module] | None = None
    optimizer: OptimizerFactory | None = None
    replay: int = 0
    draw: Draw = "random"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool, least=1)
        if self.hidden is not None:
            whole_number("hidden", self.hidden, least=1)
        whole_number("layers", self.layers, least=0)
        whole_number("convs", self.convs, least=0)
        check_norm(self.norm, self.layers + self.convs)
        whole_number("replay", self.replay, least=0)
        if self.classes is not None:
            whole_number("classes", self.classes, least=1)
        if self.heads is not None:
            check_callable("heads", self.heads, "give a function of a stage's number that returns a module")
        check_factory(self.optimizer)
        one_of("draw", self.draw, DRAWS)


class OwnHead(nn.Module):
    """A head of the user's, on the output of a stage; on a tuple if there are several.

    Example:
        >>> OwnHead(nn.Linear(4, 2))([torch.zeros(6, 4)], torch.zeros(6)).shape
        torch.Size([6, 2])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tensors: Sequence[Tensor], target: Any) -> Any:
        """Predict the network's output."""
        return self.module(tensors[0] if len(tensors) == 1 else tuple(tensors))


class Head(nn.Module):
    """Pooling and a perceptron over all outputs of a stage.

    Images are pooled to a grid, after 1x1 convolutions at a quarter of their resolution if asked for; positions of a
    sequence are averaged. If every position has a target, each has an output, with classes in dimension 1.

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
        self.convs = nn.ModuleList(
            [reduced(w, options.convs, norm=options.norm) for d, w in kinds if d == 4 and options.convs]
        )
        hidden = width if options.hidden is None else options.hidden
        self.layers = perceptron(width, hidden, options.layers, classes, norm=options.norm)

    def forward(self, tensors: Sequence[Tensor], target: Any) -> Tensor:
        """Predict the network's output."""
        if self.positions and isinstance(target, Tensor) and target.shape[:2] == tensors[0].shape[:2]:
            return self.layers(torch.cat(list(tensors), dim=2)).transpose(1, 2)
        convs = iter(self.convs)
        images = [next(convs, None) if tensor.dim() == 4 else None for tensor in tensors]
        return self.layers(torch.cat([self._pooled(*each) for each in zip(tensors, images)], dim=1))

    def _pooled(self, tensor: Tensor, convs: nn.Module | None) -> Tensor:
        if convs is not None:
            rows, columns = (ceil(side / REDUCTION) for side in tensor.shape[2:])
            tensor = convs(F.adaptive_avg_pool2d(tensor, (rows, columns)))
        if tensor.dim() == 4:
            tensor = F.adaptive_avg_pool2d(tensor, self.pool)
        elif tensor.dim() == 3:
            tensor = tensor.mean(1)
        return tensor.reshape(tensor.shape[0], -1)


def forms(out: Tensor, target: Any) -> list[Tensor]:
    """Return a head's output in the forms that the network's may have: as targets that are floats, or classes last.

    Example:
        >>> [tuple(form.shape) for form in forms(torch.zeros(4, 1), torch.zeros(4))]
        [(4,), (4, 1)]
        >>> [tuple(form.shape) for form in forms(torch.zeros(4, 9, 5), torch.zeros(4, 5).long())]
        [(4, 5, 9), (4, 9, 5)]
    """
    given = isinstance(target, Tensor)
    if given and target.is_floating_point() and target.shape != out.shape and target.numel() == out.numel():
        return [out.reshape(target.shape), out]
    return [out.transpose(1, 2), out] if out.dim() == 3 and out.shape[1] != out.shape[2] else [out]
