"""The networks of the memory benchmark: stacks of equal layers, as in the paper's figures 3 and 11.

Paper: Zhao et al., Accelerated on-device forward neural network training with module-wise descending asynchronism,
2023. It has batches of 64 samples, and 18 convolutions of 3 channels unless the figure's axis says otherwise. Width,
image size and classes are chosen here. For GPUs there is torchvision's ResNet-18 on large images, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel import models
from freewheel.stage import Recurrent

CLASSES = 10
SIDE = 32  # of an image
LARGE_SIDE = 224


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network of equal layers, and the size of its batches.

    Args:
        kind: `fc`, linear layers with ReLU; `conv`, 3x3 convolutions with BatchNorm and ReLU; `rnn`, recurrent layers,
            with a class at every time step; `resnet18`, that network, whose blocks count as layers (depth 9 with the
            stem).
        depth: The number of layers, without the classifier.
        width: Features, channels or hidden units of a layer.
        batch: Samples in a batch.
        length: Time steps of a sequence.
    """

    kind: Literal["fc", "conv", "rnn", "resnet18"]
    depth: int
    width: int
    batch: int = 64
    length: int = 1

    def layers(self) -> list[nn.Sequential]:
        """The layers, always with the same weights; the last one contains the classifier."""
        torch.manual_seed(0)
        if self.kind == "resnet18":
            return _resnet18()
        layers = [nn.Sequential(*self._layer(first=i == 0)) for i in range(self.depth)]
        if self.kind == "conv":
            layers[-1].extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
        layers[-1].append(nn.Linear(self.width, CLASSES))
        return layers

    def _layer(self, *, first: bool) -> Iterator[nn.Module]:
        if self.kind == "rnn":
            yield Recurrent(nn.RNN(self.width, self.width, batch_first=True))
            return
        if self.kind == "fc":
            yield nn.Linear(self.width, self.width)
        else:
            yield nn.Conv2d(3 if first else self.width, self.width, 3, padding=1, bias=False)
            yield nn.BatchNorm2d(self.width)
        yield nn.ReLU()

    def stages(self, count: int) -> list[nn.Sequential]:
        """The layers in stages of about equal length."""
        layers = self.layers()
        bounds = pairwise(round(i * self.depth / count) for i in range(count + 1))
        return [nn.Sequential(*(module for layer in layers[a:b] for module in layer)) for a, b in bounds]

    def data(self, size: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """A random batch of this size."""
        shapes = {
            "fc": (self.width,),
            "conv": (3, SIDE, SIDE),
            "rnn": (self.length, self.width),
            "resnet18": (3, LARGE_SIDE, LARGE_SIDE),
        }
        each = (self.length,) if self.kind == "rnn" else ()
        return torch.randn(size, *shapes[self.kind]).to(device), torch.randint(CLASSES, (size, *each)).to(device)


def _resnet18() -> list[nn.Sequential]:
    """ResNet-18 in its stem and its eight blocks, the last with the classifier."""
    net = models.build("torchvision/resnet18", num_classes=CLASSES, in_shape=(3, LARGE_SIDE, LARGE_SIDE))
    groups = [layer for name, layer in net.named_children() if name.startswith("layer")]
    stem, head = list(net)[:4], list(net)[-3:]
    blocks = [nn.Sequential(block) for group in groups for block in group.children()]
    blocks[-1].extend(head)
    return [nn.Sequential(*stem), *blocks]


def loss(out: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy, over all time steps of a sequence."""
    return F.cross_entropy(out.flatten(0, -2), target.flatten())
