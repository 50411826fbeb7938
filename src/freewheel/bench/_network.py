"""The network that the speed benchmark trains."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel import models
from freewheel.methods import Method
from freewheel.split import Stages, split
from freewheel.trainer import Trainer, rebalance

SHAPE = (3, 32, 32)
Cut = tuple[int, ...]  # the number of units in each stage
OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4)


class ResNet20(nn.Module):
    """ResNet-20 for 32x32 images with a single traceable forward, so that it can be cut within its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = models.build("resnet-20", in_shape=SHAPE)

    def forward(self, x: Tensor) -> Tensor:
        """The class scores."""
        return self.net(x)


def network() -> nn.Module:
    """The network, always with the same weights."""
    torch.manual_seed(0)
    return ResNet20()


def stages_of(cut: Cut) -> Stages:
    """The network in two stages, with this number of units in each."""
    return split(network(), balance=cut, example=torch.randn(2, *SHAPE))


def compiled_cut(cut: Cut, batch_size: int, method: Method, *, lr: float = 0.01) -> Cut:
    """Where to cut the network once its stages are compiled: their layers are fused, and other stages are slowest."""
    example, target = torch.randn(batch_size, *SHAPE), torch.randint(10, (batch_size,))
    make = partial(
        Trainer,
        method=method,
        loss=F.cross_entropy,
        optimizer=partial(OPTIMIZER, lr=lr),
        runtime="simulate",
        compile=True,
        threads=1,
        check=False,
    )
    batches = [(example, target)] * max(10, 160 // batch_size)
    return rebalance(stages_of(cut), make, batches, example=example).report.balance
