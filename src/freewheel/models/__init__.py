"""The networks of the papers, by name: `build("resnet-110")`."""

from __future__ import annotations

from freewheel.models._adapt import Adapt as Adapt
from freewheel.models._asyncfgd import convl as convl, convs as convs, fcl as fcl, fcs as fcs
from freewheel.models._blocks import (
    BasicBlock as BasicBlock,
    Bottleneck as Bottleneck,
    PadShortcut as PadShortcut,
    PreActBottleneck as PreActBottleneck,
    WideBlock as WideBlock,
)
from freewheel.models._mobile import (
    Residual as Residual,
    SamePad as SamePad,
    efficientnet_lite0 as efficientnet_lite0,
    mobilenet_v2 as mobilenet_v2,
)
from freewheel.models._plain import digits_cnn as digits_cnn, vgg19 as vgg19
from freewheel.models._pretrained import (
    Pretrained as Pretrained,
    classifier as classifier,
    load_pretrained as load_pretrained,
)
from freewheel.models._recurrent import ClassesFirst as ClassesFirst, recurrent as recurrent
from freewheel.models._registry import build as build, names as names, paper_cuts as paper_cuts, stages as stages
from freewheel.models._resnet import (
    cifar_resnet as cifar_resnet,
    imagenet_resnet as imagenet_resnet,
    preact_resnet as preact_resnet,
    resnet18 as resnet18,
    resnet50 as resnet50,
    resnext29 as resnext29,
    wide_resnet as wide_resnet,
)
