"""The network that the speed benchmark trains."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from freewheel import models
from freewheel.split import Stages, split

SHAPE = (3, 32, 32)
OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4)


def network() -> nn.Module:
    """ResNet-20 for 32x32 images, always with the same weights."""
    torch.manual_seed(0)
    return models.build("resnet-20", in_shape=SHAPE)


def stages_of(cut: str) -> Stages:
    """The network in two stages, the second beginning at the named layer."""
    return split(network(), at=[cut])
