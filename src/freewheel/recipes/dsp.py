"""How DSP and those it is compared with are trained.

Paper: Xu et al., On the acceleration of deep learning model parallelism with staleness, 2020. Section 5, "Experiment
Settings": SGD with momentum 0.9, random crops and flips, and four settings; the step size is multiplied by 0.1 at the
milestones. The best test accuracy: tables 1 and 4.

| networks                     | epochs | batch | step size | milestones    | weight decay |
| ResNet-98, ResNet-164        | 300    | 128   | 0.01      | 150, 225      | 5e-4         |
| ResNet-1001                  | 250    | 128   | 0.1       | 100, 150, 200 | 2e-4         |
| VGG-19, ResNeXt-29           | 200    | 128   | 0.01      | 100, 150      | 5e-4         |
| ResNet-18, -50 on ImageNet   | 90     | 256   | 0.1       | 30, 60, 80    | 1e-4         |
"""

from __future__ import annotations

from dataclasses import replace

from freewheel.recipes._recipe import Recipe
from freewheel.recipes._schedule import LRSchedule

DSP = Recipe(
    name="dsp",
    paper="dsp",
    source="Xu et al. 2020, section 5, Experiment Settings",
    methods=("dsp", "bp", "fr", "dni"),
    data=("cifar10", "cifar100"),
    models=("resnet-164", "resnet-98"),
    stages=3,
    epochs=300,
    batch_size=128,
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=LRSchedule(shape="multistep", milestones=(150, 225), gamma=0.1),
    augment=True,
    metric="accuracy",
    epoch="best",
    ours=("seeds",),
)
RESNET_1001 = replace(
    DSP,
    name="dsp-resnet-1001",
    models=("resnet-1001",),
    epochs=250,
    lr=0.1,
    weight_decay=2e-4,
    schedule=replace(DSP.schedule, milestones=(100, 150, 200)),
)
VGG_RESNEXT = replace(
    DSP,
    name="dsp-vgg-resnext",
    models=("vgg-19", "resnext-29"),
    epochs=200,
    schedule=replace(DSP.schedule, milestones=(100, 150)),
)
IMAGENET = replace(
    DSP,
    name="dsp-imagenet",
    data=("imagenet",),
    models=("resnet-18", "resnet-50", "resnet-101"),
    epochs=90,
    batch_size=256,
    lr=0.1,
    weight_decay=1e-4,
    schedule=replace(DSP.schedule, milestones=(30, 60, 80)),
)
RECIPES = (DSP, RESNET_1001, VGG_RESNEXT, IMAGENET)
