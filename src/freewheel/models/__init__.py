"""The networks of the papers, by name: `build("resnet-110")`."""

from __future__ import annotations

from freewheel.models._asyncfgd import convl, convs, fcl, fcs
from freewheel.models._blocks import BasicBlock, Bottleneck, PadShortcut, PreActBottleneck, WideBlock
from freewheel.models._plain import digits_cnn, vgg19
from freewheel.models._registry import build, names, paper_cuts, stages
from freewheel.models._resnet import cifar_resnet, preact_resnet, resnet18, resnet50, resnext29, wide_resnet

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "PadShortcut",
    "PreActBottleneck",
    "WideBlock",
    "build",
    "cifar_resnet",
    "convl",
    "convs",
    "digits_cnn",
    "fcl",
    "fcs",
    "names",
    "paper_cuts",
    "preact_resnet",
    "resnet18",
    "resnet50",
    "resnext29",
    "stages",
    "vgg19",
    "wide_resnet",
]
