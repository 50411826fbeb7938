"""Residual blocks and their initialization. No block works in place: a stage stores its input for a later backward."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that preserves the image size at stride 1.

    Example:
        >>> conv(16, 32, 3, stride=2)
        Conv2d(16, 32, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    """
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


class PadShortcut(nn.Module):
    """Shortcut A of He et al. (2016): every `stride`-th pixel, zeros in the new channels, no parameters.

    Example:
        >>> import torch
        >>> PadShortcut(16, 32, stride=2)(torch.ones(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        before = (outputs - inputs) // 2
        self.pad = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.pad)


def shortcut_of(inputs: int, outputs: int, stride: int, kind: str) -> nn.Module:
    """The identity if the shapes agree, otherwise shortcut A (`"pad"`) or B (`"projection"`).

    Example:
        >>> shortcut_of(16, 16, 1, "pad")
        Identity()
    """
    if inputs == outputs and stride == 1:
        return nn.Identity()
    if kind == "pad":
        return PadShortcut(inputs, outputs, stride=stride)
    return nn.Sequential(conv(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016, figure 2).

    Example:
        >>> import torch
        >>> BasicBlock(16, 32, stride=2)(torch.ones(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, shortcut: str = "projection") -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut_of(inputs, outputs, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + F(x))."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a projection shortcut; with groups, the block of ResNeXt.

    The 3x3 convolution has `middle` channels, by default a quarter of the outputs.

    Example:
        >>> import torch
        >>> Bottleneck(64, 256)(torch.ones(1, 64, 4, 4)).shape
        torch.Size([1, 256, 4, 4])
    """

    def __init__(
        self, inputs: int, outputs: int, *, middle: int | None = None, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        middle = outputs // 4 if middle is None else middle
        self.conv1 = conv(inputs, middle, 1)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = conv(middle, middle, 3, stride=stride, groups=groups)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = conv(middle, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut_of(inputs, outputs, stride, "projection")

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + F(x))."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.shortcut(x))


class PreActBottleneck(nn.Module):
    """The bottleneck with BatchNorm and ReLU before each convolution (He et al. 2016b, figure 4e).

    Where the shapes change, the projection and the block take the activated input, as in the authors' code;
    elsewhere the shortcut is the input itself.

    Example:
        >>> import torch
        >>> PreActBottleneck(16, 64)(torch.ones(1, 16, 4, 4)).shape
        torch.Size([1, 64, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, *, middle: int | None = None, stride: int = 1) -> None:
        super().__init__()
        middle = outputs // 4 if middle is None else middle
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, middle, 1, stride=stride)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv2 = conv(middle, middle, 3)
        self.bn3 = nn.BatchNorm2d(middle)
        self.conv3 = conv(middle, outputs, 1)
        changes = inputs != outputs or stride != 1
        self.shortcut = conv(inputs, outputs, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """shortcut(x) + F(x)."""
        active = F.relu(self.bn1(x))
        y = F.relu(self.bn2(self.conv1(active)))
        y = self.conv3(F.relu(self.bn3(self.conv2(y))))
        return y + (x if self.shortcut is None else self.shortcut(active))


class WideBlock(nn.Module):
    """Two pre-activated 3x3 convolutions with dropout between (Zagoruyko and Komodakis 2016, figure 1d).

    Example:
        >>> import torch
        >>> WideBlock(16, 160, stride=2)(torch.ones(1, 16, 4, 4)).shape
        torch.Size([1, 160, 2, 2])
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride=stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = conv(outputs, outputs, 3)
        changes = inputs != outputs or stride != 1
        self.shortcut = conv(inputs, outputs, 1, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """shortcut(x) + F(x)."""
        active = F.relu(self.bn1(x))
        y = self.dropout(F.relu(self.bn2(self.conv1(active))))
        return self.conv2(y) + (x if self.shortcut is None else self.shortcut(active))


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
