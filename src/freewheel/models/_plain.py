"""Networks without shortcuts, each a flat `nn.Sequential`: VGG-19 and the network for 8x8 digits."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from freewheel._errors import whole_number
from freewheel.models._blocks import conv, kaiming_
from freewheel.models._check import CHW, image_shape, require_side

# Configuration E of Simonyan and Zisserman (2015), table 1: convolutions and channels between the pools.
_VGG19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))


def vgg19(*, num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """VGG-19 with BatchNorm and a single linear layer as classifier, as is usual for 32x32 images.

    Example:
        >>> vgg19().fc
        Linear(in_features=512, out_features=10, bias=True)
    """
    channels, height, width = image_shape(in_shape)
    require_side("vgg-19", (channels, height, width), 32)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (depth, out) in enumerate(_VGG19, start=1):
        for j in range(1, depth + 1):
            layers[f"conv{i}_{j}"] = conv(channels, out, 3)
            layers[f"bn{i}_{j}"] = nn.BatchNorm2d(out)
            layers[f"relu{i}_{j}"] = nn.ReLU()
            channels = out
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        height, width = height // 2, width // 2
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels * height * width, whole_number("num_classes", num_classes, least=1))
    return kaiming_(nn.Sequential(layers))


def digits_cnn(*, width: int = 16, num_classes: int = 10, in_shape: CHW = (1, 8, 8)) -> nn.Sequential:
    """Eight convolutions for 8x8 digits, with equal work before and after the pool.

    Four convolutions of `width` channels, a pool, four of twice as many: halving the sides of the image and
    doubling the channels keeps the work of a layer constant, so a cut at `pool` gives two equal stages.

    Example:
        >>> [name for name in digits_cnn()._modules if "conv" in name or "pool" in name]
        ['conv1', 'conv2', 'conv3', 'conv4', 'pool', 'conv5', 'conv6', 'conv7', 'conv8', 'avgpool']
    """
    channels, height, wide = image_shape(in_shape)
    require_side("digits-cnn", (channels, height, wide), 2)
    whole_number("width", width, least=1)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, out in enumerate([width] * 4 + [2 * width] * 4, start=1):
        if i == 5:
            layers["pool"] = nn.MaxPool2d(2)
        layers[f"conv{i}"] = conv(channels, out, 3)
        layers[f"bn{i}"] = nn.BatchNorm2d(out)
        layers[f"relu{i}"] = nn.ReLU()
        channels = out
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, whole_number("num_classes", num_classes, least=1))
    return kaiming_(nn.Sequential(layers))
