"""The networks of the papers, by name: `build("resnet-110")`."""

from __future__ import annotations

from freewheel.models._adapt import Adapt
from freewheel.models._asyncfgd import convl, convs, fcl, fcs
from freewheel.models._blocks import BasicBlock, Bottleneck, PadShortcut, PreActBottleneck, WideBlock
from freewheel.models._mobile import Residual, SamePad, efficientnet_lite0, mobilenet_v2
from freewheel.models._plain import digits_cnn, vgg19
from freewheel.models._pretrained import Pretrained, classifier, load_pretrained
from freewheel.models._recurrent import ClassesFirst, recurrent
from freewheel.models._registry import build, names, paper_cuts, stages
from freewheel.models._resnet import cifar_resnet, preact_resnet, resnet18, resnet50, resnext29, wide_resnet

__all__ = [
    "Adapt",
    "BasicBlock",
    "Bottleneck",
    "ClassesFirst",
    "PadShortcut",
    "PreActBottleneck",
    "Pretrained",
    "Residual",
    "SamePad",
    "WideBlock",
    "build",
    "cifar_resnet",
    "classifier",
    "convl",
    "convs",
    "digits_cnn",
    "efficientnet_lite0",
    "fcl",
    "fcs",
    "load_pretrained",
    "mobilenet_v2",
    "names",
    "paper_cuts",
    "preact_resnet",
    "recurrent",
    "resnet18",
    "resnet50",
    "resnext29",
    "stages",
    "vgg19",
    "wide_resnet",
]
