"""How AsyncFGD and those it is compared with are trained.

Paper: Zhao et al., Accelerated on-device forward neural network training with module-wise descending asynchronism,
2023. Section 6.1: Adam, batch size 64, the step size of 1e-5, 1e-4, 1e-3 and 1e-2 that is best on held-out samples.
Appendix H.1: every seed is 0. Appendix H.3: three modules, four for pretrained networks. For these, the classifier is
trained alone for 10 epochs (section 6.1), and then chosen layers with it, whose α grows to 0.15 in 20 epochs (appendix
I.1). Networks and data: tables 1 and 2.

The paper does not say for how many epochs it trains, how many samples it holds out, which epoch it reports, or how it
schedules and augments. We hold out a tenth, take the last epoch of a constant step size, and do not augment. 30 epochs
are those of the transfer schedule, until α is at its peak.
"""

from __future__ import annotations

from dataclasses import replace

from freewheel.recipes._recipe import Recipe
from freewheel.tangents import Transfer

SCRATCH = Recipe(
    name="asyncfgd",
    paper="asyncfgd",
    source="Zhao et al. 2023, section 6.1, appendix H.1",
    methods=("asyncfgd", "fgd", "bp", "fa", "dfa", "sdfa", "drtp"),
    data=("mnist", "cifar10"),
    models=tuple(f"{net}-{act}" for net in ("convs", "convl", "fcs", "fcl") for act in ("tanh", "relu")),
    stages=3,
    epochs=30,
    batch_size=64,
    optimizer="adam",
    lr=1e-3,
    lr_grid=(1e-5, 1e-4, 1e-3, 1e-2),
    validation=0.1,
    ours=("epochs", "validation", "epoch", "schedule", "augment"),
)
TRANSFER = replace(
    SCRATCH,
    name="asyncfgd-transfer",
    paper="asyncfgd-transfer",
    source="Zhao et al. 2023, section 6.1, appendix H.1 and I.1",
    methods=("asyncfgd", "fgd"),
    data=("mnist", "cifar10", "fashion-mnist"),
    models=tuple(
        f"torchvision/{net}"
        for net in ("resnet18", "mobilenet_v3_small", "efficientnet_b0", "mnasnet0_5", "shufflenet_v2_x0_5")
    ),
    stages=4,
    transfer=Transfer(warmup=10, ramp=20, peak=0.15),
)
RECIPES = (SCRATCH, TRANSFER)
