"""Residual networks for 32x32 images, and for those of ImageNet, each an `nn.Sequential` of residual blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from freewheel._errors import number, one_of, whole_number
from freewheel.models._blocks import BasicBlock, Bottleneck, PreActBottleneck, WideBlock, conv, kaiming_
from freewheel.models._check import CHW, image_shape

_IMAGENET = {  # blocks in each group, by depth
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def _assemble(
    block: Callable[..., nn.Module],
    num_classes: int,
    in_shape: CHW,
    *,
    stem: int,
    widths: Sequence[int],
    depths: Sequence[int],
    preact: bool = False,
    large: bool = False,
) -> nn.Sequential:
    """Stem, groups of `block(inputs, outputs, stride=stride)`, average pool and classifier.

    Every group but the first halves the image. Pre-activation networks have BatchNorm and ReLU after the last
    group, others after the stem. The stem is a 3x3 convolution; for large images, a 7x7 one and a max-pool, which
    reduce the sides to a quarter.
    """
    kernel, stride = (7, 2) if large else (3, 1)
    first = conv(image_shape(in_shape)[0], stem, kernel, stride=stride)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=first)
    if not preact:
        layers["bn1"] = nn.BatchNorm2d(stem)
        layers["relu"] = nn.ReLU()
    if large:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    inputs = stem
    for i, (outputs, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        group = nn.Sequential()
        for j in range(depth):
            group.append(block(inputs, outputs, stride=2 if i > 1 and j == 0 else 1))
            inputs = outputs
        layers[f"layer{i}"] = group
    if preact:
        layers["bn"] = nn.BatchNorm2d(inputs)
        layers["relu"] = nn.ReLU()
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(inputs, whole_number("num_classes", num_classes, least=1))
    return kaiming_(nn.Sequential(layers))


def _blocks_per_group(depth: int, per_block: int, rest: int) -> int:
    """Solve depth = per_block * n + rest for n."""
    blocks, left = divmod(whole_number("depth", depth, least=1) - rest, per_block)
    if left or blocks < 1:
        raise ValueError(f"depth must be {per_block}n + {rest} with n >= 1, got {depth}")
    return blocks


def cifar_resnet(
    *, depth: int, shortcut: str = "pad", num_classes: int = 10, in_shape: CHW = (3, 32, 32)
) -> nn.Sequential:
    """The ResNet of depth 6n + 2 with basic blocks (He et al. 2016, section 4.2).

    Args:
        depth: 20, 32, 44, 56, 110, 1202 in the paper.
        shortcut: `"pad"` is option A, without parameters; `"projection"` is option B, 1x1 convolutions.
        num_classes, in_shape: as in `build`.

    Example:
        >>> sum(p.numel() for p in cifar_resnet(depth=20).parameters())
        269722
    """
    one_of("shortcut", shortcut, ("pad", "projection"))
    block, depths = partial(BasicBlock, shortcut=shortcut), [_blocks_per_group(depth, 6, 2)] * 3
    return _assemble(block, num_classes, in_shape, stem=16, widths=(16, 32, 64), depths=depths)


def preact_resnet(*, depth: int, num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """The pre-activation ResNet of depth 9n + 2 with bottleneck blocks (He et al. 2016b).

    ResNet-1001 has 10.3M parameters, and 10.2M (as published) without those of BatchNorm.

    Example:
        >>> len(preact_resnet(depth=164).layer1)
        18
    """
    depths = [_blocks_per_group(depth, 9, 2)] * 3
    widths = (64, 128, 256)
    return _assemble(PreActBottleneck, num_classes, in_shape, stem=16, widths=widths, depths=depths, preact=True)


def resnet18(*, num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """ResNet-18 with a 3x3 stem and no max-pool, which keeps 32x32 images at full size up to the blocks.

    Example:
        >>> [len(group) for group in resnet18()[3:7]]
        [2, 2, 2, 2]
    """
    return _assemble(BasicBlock, num_classes, in_shape, stem=64, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2))


def resnet50(*, num_classes: int = 10, in_shape: CHW = (3, 32, 32)) -> nn.Sequential:
    """ResNet-50 with a 3x3 stem and no max-pool; the 3x3 convolution of a block has the stride.

    Example:
        >>> [len(group) for group in resnet50()[3:7]]
        [3, 4, 6, 3]
    """
    return _assemble(Bottleneck, num_classes, in_shape, stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3))


def imagenet_resnet(*, depth: int, num_classes: int = 1000, in_shape: CHW = (3, 224, 224)) -> nn.Sequential:
    """The ResNet of depth 18, 34, 50, 101 or 152 for ImageNet (He et al. 2016, table 1), as in torchvision.

    The 3x3 convolution of a bottleneck has the stride. Images of any size work.

    Example:
        >>> net = imagenet_resnet(depth=101)
        >>> [len(group) for group in net[4:8]], sum(p.numel() for p in net.parameters())
        ([3, 4, 23, 3], 44549160)
    """
    if depth not in _IMAGENET:
        raise ValueError(f"depth={depth!r}: give 18, 34, 50, 101 or 152")
    depths = _IMAGENET[depth]
    widths, block = ((64, 128, 256, 512), BasicBlock) if depth < 50 else ((256, 512, 1024, 2048), Bottleneck)
    return _assemble(block, num_classes, in_shape, stem=64, widths=widths, depths=depths, large=True)


def resnext29(
    *, cardinality: int = 8, width: int = 64, num_classes: int = 10, in_shape: CHW = (3, 32, 32)
) -> nn.Sequential:
    """ResNeXt-29 (Xie et al. 2017, section 5.3).

    Args:
        cardinality: groups of each 3x3 convolution.
        width: channels per group in the first blocks; 8 x 64d is the paper's smaller network.
        num_classes, in_shape: as in `build`.

    Example:
        >>> resnext29(cardinality=2, width=4).layer1[0].conv2
        Conv2d(8, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=2, bias=False)
    """
    groups = whole_number("cardinality", cardinality, least=1)
    middle = groups * whole_number("width", width, least=1)
    return _assemble(
        lambda inputs, outputs, stride: Bottleneck(
            inputs, outputs, middle=middle * outputs // 256, stride=stride, groups=groups
        ),
        num_classes,
        in_shape,
        stem=64,
        widths=(256, 512, 1024),
        depths=(3, 3, 3),
    )


def wide_resnet(
    *, depth: int, widen: int, dropout: float = 0.0, num_classes: int = 10, in_shape: CHW = (3, 32, 32)
) -> nn.Sequential:
    """The wide ResNet of depth 6n + 4 (Zagoruyko and Komodakis 2016).

    Args:
        depth: 28 for WRN-28-10.
        widen: the widening factor, 10 for WRN-28-10.
        dropout: dropout probability between the convolutions of a block.
        num_classes, in_shape: as in `build`.

    Example:
        >>> wide_resnet(depth=10, widen=2).fc
        Linear(in_features=128, out_features=10, bias=True)
    """
    if number("dropout", dropout, least=0, hint="a probability below 1") >= 1:
        raise ValueError(f"dropout={dropout}: give a probability below 1")
    widths = [width * whole_number("widen", widen, least=1) for width in (16, 32, 64)]
    block, depths = partial(WideBlock, dropout=dropout), [_blocks_per_group(depth, 6, 4)] * 3
    return _assemble(block, num_classes, in_shape, stem=16, widths=widths, depths=depths, preact=True)
