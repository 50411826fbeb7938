"""How FDG and those it is compared with are trained.

Paper: Zhuang et al., Fully decoupled neural network learning using delayed gradients, 2019. Section V.A,
"Implementation Details": SGD, initial step size 0.1, momentum 0.9, weight decay 5e-4, batch size 128, 300 epochs; the
step size is divided by 10 at epochs 150, 225 and 275; random crops and flips; the test error at the last epoch, the
median of 3 runs; no validation set. ResNet-110, ResNet-1202 and all networks in three or four modules begin with 3
epochs at 0.01. Networks, data and numbers of modules: tables III to VI.
"""

from __future__ import annotations

from dataclasses import replace

from freewheel.recipes._recipe import Recipe
from freewheel.recipes._schedule import LRSchedule

FDG = Recipe(
    name="fdg",
    paper="fdg",
    source="Zhuang et al. 2019, section V.A",
    methods=("fdg", "bp", "ddg", "dgl", "fr"),
    data=("cifar10", "cifar100", "tiny-imagenet"),
    models=("resnet-20", "resnet-56", "resnet-18", "wrn-28-10", "mobilenet-v2"),
    stages=2,
    epochs=300,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=LRSchedule(shape="multistep", milestones=(150, 225, 275), gamma=0.1),
    augment=True,
    seeds=3,
    metric="error",
    epoch="last",
    over="median",
)
WARMUP = replace(
    FDG,
    name="fdg-warmup",
    models=("resnet-110", "resnet-1202"),
    least_stages=3,
    schedule=replace(FDG.schedule, warmup_epochs=3, warmup_lr=0.01),
)
RECIPES = (WARMUP, FDG)
