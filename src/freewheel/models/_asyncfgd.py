"""ConvS, ConvL, FCS and FCL: the four small networks of AsyncFGD (appendix H, tables 3 to 6 and 8 to 11)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from freewheel._errors import one_of, whole_number
from freewheel.models._check import CHW, image_shape, out_side, require_side

Activation = Literal["relu", "tanh"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}

# The first layers of the second and third stage (K = 3). Layers that the tables omit:
#   ConvS, table 3: `act` is act1 of table 8, and the flatten between pool1 and fc1 is in the stage of fc1;
#   ConvL, table 4: the flatten of table 11 is in the last stage, before fc1;
#   FCS, table 5: the flatten is first in the first stage, the classifier fc4 last in the last;
#   FCL, table 6: the flatten is first in the first stage, and the second `fc5` of the last row is fc6.
CUTS = {
    "convs": ("pool1", "act2"),
    "convl": ("conv3", "conv5"),
    "fcs": ("fc2", "fc3"),
    "fcl": ("fc3", "fc5"),
}


def _activation(name: str) -> type[nn.Module]:
    one_of("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]


def convs(*, activation: Activation = "relu", num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """ConvS, table 8: one convolution and two linear layers.

    A flatten precedes fc1, which the table omits.

    Example:
        >>> list(convs()._modules)
        ['conv1', 'act1', 'pool1', 'flatten', 'fc1', 'act2', 'fc2']
    """
    act = _activation(activation)
    channels, height, width = image_shape(in_shape)
    require_side("convs", (channels, height, width), 2)
    pooled = out_side(height, 2, 2) * out_side(width, 2, 2)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, kernel_size=5, stride=1, padding=2),
            act1=act(),
            pool1=nn.MaxPool2d(kernel_size=2, stride=2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32 * pooled, 1000),
            act2=act(),
            fc2=nn.Linear(1000, whole_number("num_classes", num_classes, least=1)),
        )
    )


def convl(*, activation: Activation = "relu", num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """ConvL, table 11: five blocks of convolution, BatchNorm, activation and pool, then a classifier.

    The convolutions pad by 2 with a kernel of 3, so each enlarges the image by 2 and no image is too small
    for the five pools.

    Example:
        >>> convl(in_shape=(1, 28, 28)).fc1
        Linear(in_features=2048, out_features=10, bias=True)
    """
    act = _activation(activation)
    channels, height, width = image_shape(in_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, out in enumerate((32, 64, 128, 256, 512), start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, out, kernel_size=3, stride=1, padding=2)
        layers[f"bn{i}"] = nn.BatchNorm2d(out)
        layers[f"act{i}"] = act()
        layers[f"pool{i}"] = nn.MaxPool2d(kernel_size=2, stride=2)
        height, width = (out_side(out_side(side, 3, padding=2), 2, 2) for side in (height, width))
        channels = out
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(channels * height * width, whole_number("num_classes", num_classes, least=1))
    return nn.Sequential(layers)


def fcs(*, activation: Activation = "relu", num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """FCS, table 9: three linear layers, then the classifier fc4 that the table omits.

    Table 9 ends in the 256 outputs of fc3; table 5 lists the activation ac3 after it, which is useful only
    before a classifier.

    Example:
        >>> list(fcs()._modules)
        ['flatten', 'fc1', 'ac1', 'fc2', 'ac2', 'fc3', 'ac3', 'fc4']
    """
    act = _activation(activation)
    channels, height, width = image_shape(in_shape)
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(channels * height * width, 1024),
            ac1=act(),
            fc2=nn.Linear(1024, 512),
            ac2=act(),
            fc3=nn.Linear(512, 256),
            ac3=act(),
            fc4=nn.Linear(256, whole_number("num_classes", num_classes, least=1)),
        )
    )


def fcl(*, activation: Activation = "relu", num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """FCL, table 10: five linear layers with BatchNorm, then a classifier.

    Example:
        >>> fcl(activation="tanh").fc6
        Linear(in_features=512, out_features=10, bias=True)
    """
    act = _activation(activation)
    channels, height, width = image_shape(in_shape)
    features = channels * height * width
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, out in enumerate((1024, 1024, 1024, 1024, 512), start=1):
        layers[f"fc{i}"] = nn.Linear(features, out)
        layers[f"bn{i}"] = nn.BatchNorm1d(out)
        layers[f"ac{i}"] = act()
        features = out
    layers["fc6"] = nn.Linear(features, whole_number("num_classes", num_classes, least=1))
    return nn.Sequential(layers)
