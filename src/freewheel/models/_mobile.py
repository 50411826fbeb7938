"""MobileNetV2 and EfficientNet-Lite0, with the parameter names of their published ImageNet weights.

Both are chains of inverted residuals: a 1x1 convolution expands, a depthwise one filters, a 1x1 one projects.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._errors import whole_number
from freewheel.models._adapt import adapted
from freewheel.models._blocks import conv, kaiming_
from freewheel.models._check import CHW

# Sandler et al. (2018), table 2: expansion, channels, blocks and stride of each group.
_MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip

# Tan and Le (2019), table 1, without squeeze and excitation: expansion, channels, blocks, stride and kernel.
_EFFICIENTNET_LITE0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip

_STEM, _LAST = 32, 1280

# The AsyncFGD paper splits EfficientNet in four (appendix H.3.2): before the groups 2, 4 and 7.
LITE0_CUTS = ("_blocks.1", "_blocks.5", "_blocks.15")

# Some files of MobileNetV2 number all layers of a block consecutively (0 to 7), torchvision those of each
# convolution separately. The first block does not expand.
_EXPANDING = {"0": "0.0", "1": "0.1", "3": "1.0", "4": "1.1", "6": "2", "7": "3"}
_NOT_EXPANDING = {"0": "0.0", "1": "0.1", "3": "1", "4": "2"}


class Residual(nn.Sequential):
    """A sequence of layers whose input is added to the output.

    Example:
        >>> import torch
        >>> Residual(nn.Identity())(torch.ones(2))
        tensor([2., 2.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Add the input to F(input)."""
        return input + super().forward(input)


class SamePad(nn.Module):
    """Zero padding with which a strided convolution has ceil(side / stride) outputs, as in TensorFlow.

    An odd amount is padded more at the end, which `padding=` cannot express.

    Example:
        >>> import torch
        >>> SamePad(kernel=3, stride=2)(torch.ones(1, 1, 2, 3))[0, 0]
        tensor([[0., 1., 1., 1., 0.],
                [0., 1., 1., 1., 0.],
                [0., 0., 0., 0., 0.]])
    """

    def __init__(self, *, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Pad."""
        rows, columns = (self.kernel - self.stride + -side % self.stride for side in (x.shape[2], x.shape[3]))
        return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))

    def extra_repr(self) -> str:
        """The arguments."""
        return f"kernel={self.kernel}, stride={self.stride}"


def mobilenet_v2(*, resize: int | None = None, num_classes: int = 10, in_shape: CHW = (3, 224, 224)) -> nn.Sequential:
    """MobileNetV2 (Sandler et al. 2018) with the parameter names of torchvision.

    Args:
        resize: rows and columns to resize images to first.
        num_classes, in_shape: as in `build`; images of any size work, and one gray channel is repeated.

    Example:
        >>> net = mobilenet_v2(in_shape=(1, 28, 28), resize=64)
        >>> net.features[2].conv[3], net.classifier[1]
        (BatchNorm2d(24, eps=1e-05, ...), Linear(in_features=1280, out_features=10, bias=True))
    """
    layers, channels = adapted(in_shape, resize)
    features = nn.Sequential(_conv_norm_act(channels, _STEM, 3, stride=2))
    inputs = _STEM
    for expansion, outputs, depth, first in _MOBILENET_V2:
        for stride in [first] + [1] * (depth - 1):
            middle = inputs * expansion
            chain = nn.Sequential() if expansion == 1 else nn.Sequential(_conv_norm_act(inputs, middle, 1))
            chain.append(_conv_norm_act(middle, middle, 3, stride=stride, groups=middle))
            chain.append(conv(middle, outputs, 1))
            chain.append(nn.BatchNorm2d(outputs))
            features.append(_block(OrderedDict(conv=chain), residual=stride == 1 and inputs == outputs))
            inputs = outputs
    features.append(_conv_norm_act(inputs, _LAST, 1))
    layers["features"] = features
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    classes = whole_number("num_classes", num_classes, least=1)
    layers["classifier"] = nn.Sequential(nn.Dropout(0.2), nn.Linear(_LAST, classes))
    return kaiming_(nn.Sequential(layers))


def efficientnet_lite0(
    *, resize: int | None = None, num_classes: int = 10, in_shape: CHW = (3, 224, 224)
) -> nn.Sequential:
    """EfficientNet-Lite0 with the parameter names of the `efficientnet_lite_pytorch` package.

    EfficientNet-B0 (Tan and Le 2019) without squeeze and excitation, with ReLU6 instead of swish and with
    TensorFlow's padding. There is no stochastic depth.

    Args:
        resize: rows and columns to resize images to first.
        num_classes, in_shape: as in `build`; images of any size work, and one gray channel is repeated.

    Example:
        >>> net = efficientnet_lite0()
        >>> net._blocks[1]._pad, net._fc
        (SamePad(kernel=3, stride=2), Linear(in_features=1280, out_features=10, bias=True))
    """
    layers, channels = adapted(in_shape, resize)
    layers["_pad"] = SamePad(kernel=3, stride=2)
    layers["_conv_stem"] = nn.Conv2d(channels, _STEM, 3, stride=2, bias=False)
    layers["_bn0"] = _norm(_STEM)
    layers["_act0"] = nn.ReLU6()
    blocks = nn.Sequential()
    inputs = _STEM
    for expansion, outputs, depth, first, kernel in _EFFICIENTNET_LITE0:
        for stride in [first] + [1] * (depth - 1):
            chain = _mbconv(inputs, outputs, expansion=expansion, stride=stride, kernel=kernel)
            blocks.append(_block(chain, residual=stride == 1 and inputs == outputs))
            inputs = outputs
    layers["_blocks"] = blocks
    layers["_conv_head"] = conv(inputs, _LAST, 1)
    layers["_bn1"] = _norm(_LAST)
    layers["_act1"] = nn.ReLU6()
    layers["_avg_pooling"] = nn.AdaptiveAvgPool2d(1)
    layers["_flatten"] = nn.Flatten()
    layers["_dropout"] = nn.Dropout(0.2)
    layers["_fc"] = nn.Linear(_LAST, whole_number("num_classes", num_classes, least=1))
    return kaiming_(nn.Sequential(layers))


def _block(layers: OrderedDict[str, nn.Module], *, residual: bool) -> nn.Sequential:
    return Residual(layers) if residual else nn.Sequential(layers)


def _conv_norm_act(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        conv(inputs, outputs, kernel, stride=stride, groups=groups), nn.BatchNorm2d(outputs), nn.ReLU6()
    )


def _mbconv(inputs: int, outputs: int, *, expansion: int, stride: int, kernel: int) -> OrderedDict[str, nn.Module]:
    middle = inputs * expansion
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if expansion != 1:
        layers["_expand_conv"] = conv(inputs, middle, 1)
        layers["_bn0"] = _norm(middle)
        layers["_act0"] = nn.ReLU6()
    if stride == 1:
        layers["_depthwise_conv"] = conv(middle, middle, kernel, groups=middle)
    else:
        layers["_pad"] = SamePad(kernel=kernel, stride=stride)
        layers["_depthwise_conv"] = nn.Conv2d(middle, middle, kernel, stride, groups=middle, bias=False)
    layers["_bn1"] = _norm(middle)
    layers["_act1"] = nn.ReLU6()
    layers["_project_conv"] = conv(middle, outputs, 1)
    layers["_bn2"] = _norm(outputs)
    return layers


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def torchvision_spelling(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename the weights of a MobileNetV2 with consecutively numbered blocks to the names of torchvision.

    Other weights are returned unchanged.

    Example:
        >>> import torch
        >>> list(torchvision_spelling({"features.1.conv.0.weight": torch.ones(2), "features.0.1.bias": torch.ones(2)}))
        ['features.1.conv.0.0.weight', 'features.0.1.bias']
    """
    if "features.1.conv.0.weight" not in state:
        return state

    def rename(key: re.Match[str]) -> str:
        numbers = _NOT_EXPANDING if key["block"] == "1" else _EXPANDING
        return f"features.{key['block']}.conv.{numbers.get(key['layer'], key['layer'])}."

    return {re.sub(r"^features\.(?P<block>\d+)\.conv\.(?P<layer>\d)\.", rename, key): v for key, v in state.items()}
