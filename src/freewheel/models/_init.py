"""The weight initialization of the ResNet papers."""

from __future__ import annotations

from torch import nn


def kaiming_(net: nn.Sequential) -> nn.Sequential:
    """Initialize a network in place as He et al.: N(0, 2 / fan_out) convolutions, biases 0.

    BatchNorm keeps PyTorch's weight 1 and bias 0.

    Example:
        >>> net = kaiming_(nn.Sequential(nn.Conv2d(8, 64, 3, bias=False)))
        >>> round(net[0].weight.std().item(), 2)  # sqrt(2 / (64 * 3 * 3))
        0.06
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return net
