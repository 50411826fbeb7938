"""Models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from freewheel._errors import of_type, unknown, whole_number
from freewheel.models import _asyncfgd, _vision
from freewheel.models._asyncfgd import convl, convs, fcl, fcs
from freewheel.models._check import image_shape, sequence_shape
from freewheel.models._mobile import LITE0_CUTS, efficientnet_lite0, mobilenet_v2
from freewheel.models._plain import digits_cnn, vgg19
from freewheel.models._recurrent import recurrent
from freewheel.models._resnet import (
    cifar_resnet,
    imagenet_resnet,
    preact_resnet,
    resnet18,
    resnet50,
    resnext29,
    wide_resnet,
)
from freewheel.split import Stages, split


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One row of the table: a builder, its fixed arguments, the options of the caller, a published split."""

    make: Callable[..., nn.Sequential]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    in_shape: tuple[int, ...] = (3, 32, 32)
    cuts: tuple[str, ...] = ()
    check_shape: Callable[[object], tuple[int, ...]] = image_shape


_LARGE = (3, 224, 224)

MODELS: Mapping[str, _Model] = {
    **{
        f"{net}-{activation}": _Model(make=make, fixed={"activation": activation}, cuts=_asyncfgd.CUTS[net])
        for net, make in {"convs": convs, "convl": convl, "fcs": fcs, "fcl": fcl}.items()
        for activation in ("relu", "tanh")
    },
    **{
        f"resnet-{depth}": _Model(make=cifar_resnet, fixed={"depth": depth}, options=("shortcut",))
        for depth in (20, 56, 98, 110, 1202)
    },
    **{f"resnet-{depth}": _Model(make=preact_resnet, fixed={"depth": depth}) for depth in (164, 1001)},
    "resnet-18": _Model(make=resnet18),
    "resnet-50": _Model(make=resnet50),
    "wrn-28-10": _Model(make=wide_resnet, fixed={"depth": 28, "widen": 10}, options=("dropout",)),
    "resnext-29": _Model(make=resnext29, options=("cardinality", "width")),
    "vgg-19": _Model(make=vgg19),
    **{
        f"resnet-{depth}-imagenet": _Model(make=imagenet_resnet, fixed={"depth": depth}, in_shape=_LARGE)
        for depth in (18, 50, 101)
    },
    "mobilenet-v2": _Model(make=mobilenet_v2, options=("resize",), in_shape=_LARGE),
    "efficientnet-lite0": _Model(make=efficientnet_lite0, options=("resize",), in_shape=_LARGE, cuts=LITE0_CUTS),
    "digits-cnn": _Model(make=digits_cnn, options=("width",), in_shape=(1, 8, 8)),
    **{
        cell: _Model(
            make=recurrent,
            fixed={"cell": cell},
            options=("layers", "hidden", "vocabulary"),
            in_shape=(8, 8),
            check_shape=sequence_shape,
        )
        for cell in ("rnn", "gru", "lstm")
    },
}

VISION: Mapping[str, _Model] = {
    f"torchvision/{net}": _Model(
        make=_vision.torchvision_net, fixed={"net": net}, options=("resize",), in_shape=_LARGE, cuts=cuts
    )
    for net, cuts in _vision.CUTS.items()
}


# Networks that a paper names, and that none of its own experiments trains.
QUOTED = {
    "amoebanet-d": "dsp quotes its speed from the GPipe paper and does not train it; build it yourself and give it to "
    "fw.split, or to --model FILE.py:FUNCTION",
}


def _lookup(name: str) -> tuple[str, _Model]:
    of_type("name", name, str, "give the name of a model, such as 'resnet-20'")
    known = {**MODELS, **VISION}
    if name.lower() in QUOTED:
        raise ValueError(f"model {name!r} is not here: {QUOTED[name.lower()]}")
    if name.lower() not in known:
        raise unknown("model", name, known)
    return name.lower(), known[name.lower()]


def names(*, vision: bool = False) -> tuple[str, ...]:
    """The names that `build` accepts.

    Args:
        vision: whether to include those that need torchvision, the extra `vision`.

    Example:
        >>> names()[:2], names()[-1]
        (('convs-relu', 'convs-tanh'), 'lstm')
        >>> names(vision=True)[-1]
        'torchvision/shufflenet_v2_x0_5'
    """
    return (*MODELS, *VISION) if vision else tuple(MODELS)


def build(name: str, *, num_classes: int = 10, in_shape: Sequence[int] | None = None, **options: Any) -> nn.Sequential:
    """Build a network by name.

    Args:
        name: one of `names(vision=True)`, in any case.
        num_classes: outputs of the classifier.
        in_shape: channels, height and width of an image; by default (3, 32, 32), for `digits-cnn` (1, 8, 8),
            for networks with ImageNet weights and `resnet-…-imagenet` (3, 224, 224). For recurrent networks, steps and
            features of a sequence, or (steps,) for whole numbers; by default (8, 8).
        options: `shortcut` for the ResNets of basic blocks (`"pad"` or `"projection"`), `dropout` for
            `wrn-28-10`, `cardinality` and `width` for `resnext-29`, `width` for `digits-cnn`, `resize` (rows
            and columns to resize images to) for networks with ImageNet weights, `layers` and `hidden` for `rnn`,
            `gru` and `lstm`, and `vocabulary` (the number of words, with 0 as padding) to classify sequences of
            words at their end.

    Returns:
        An `nn.Sequential` with named layers, which can be cut between any two of them.

    Example:
        >>> build("ConvS-ReLU", in_shape=(1, 28, 28)).fc1
        Linear(in_features=6272, out_features=1000, bias=True)
        >>> build("resnet-20", shortcut="projection").layer2[0].shortcut[0]
        Conv2d(16, 32, kernel_size=(1, 1), stride=(2, 2), bias=False)
    """
    key, model = _lookup(name)
    for option in options:
        if option not in model.options:
            takes = f"it takes {', '.join(model.options)}" if model.options else "it takes none"
            raise TypeError(f"model {key!r} has no option {option!r}: {takes}")
    return model.make(
        num_classes=whole_number("num_classes", num_classes, least=1),
        in_shape=model.check_shape(model.in_shape if in_shape is None else in_shape),
        **model.fixed,
        **options,
    )


def paper_cuts(name: str) -> tuple[str, ...]:
    """The layers at which the second and later stages begin in AsyncFGD (tables 3 to 6, appendix H.3.2).

    Example:
        >>> paper_cuts("convl-tanh")
        ('conv3', 'conv5')
        >>> paper_cuts("torchvision/resnet18")
        ('layer2', 'layer3', 'layer4')
    """
    key, model = _lookup(name)
    if not model.cuts:
        three, four = (", ".join(n for n, m in {**MODELS, **VISION}.items() if len(m.cuts) == k - 1) for k in (3, 4))
        raise ValueError(f"model {key!r} has no published split: {three} have one in three stages, {four} in four")
    return model.cuts


def stages(name: str, **kwargs: Any) -> Stages:
    """Build a network and split it at `paper_cuts(name)`; layers and parameters keep their names.

    Args:
        name: a network of AsyncFGD: eight small ones in three stages, those of torchvision and
            EfficientNet-Lite0 in four.
        kwargs: passed to `build`.

    Example:
        >>> [list(stage._modules) for stage in stages("convs-relu")]
        [['conv1', 'act1'], ['pool1', 'flatten', 'fc1'], ['act2', 'fc2']]
    """
    return split(build(name, **kwargs), at=paper_cuts(name))
