"""The weight initialisation that the ResNet papers share."""

from __future__ import annotations

from torch import nn


def kaiming_(net: nn.Sequential) -> nn.Sequential:
    """Initialise a network as He et al. did, in place: N(0, 2 / fan_out) convolutions, no classifier bias.

    BatchNorm keeps weight 1 and bias 0, which is how PyTorch makes it.

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
