"""How Async LU, Async BU and those they are compared with are trained.

Paper: Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise updates. Section 4.1: SGD,
5 epochs at 0.005 and then 0.015, momentum 0.9, a cosine with T_max 110; the training ends after 30 epochs without a
better accuracy. Table 10 has the settings of each network; tables 1 to 4 and 6 report the mean and deviation of 3 runs:
the best accuracy, the time to it, and the time to a target accuracy.

| table 10                | batch | step size | T_max | warm-up         | weight decay | target (tables 1, 3) |
| CIFAR-100, ResNet-18    | 128   | 0.015     | 100   | 5 at 0.005      | 0.005        | 60 %                 |
| CIFAR-100, ResNet-50    | 128   | 0.015     | 120   | 5 at 0.005      | 0.005        | 63 %                 |
| CIFAR-10, ResNet-18     | 128   | 0.015     | 105   | 3 at 0.005      | 0.005        | 87 %                 |
| CIFAR-10, ResNet-50     | 128   | 0.015     | 120   | 5 at 0.005      | 0.005        | 89 %                 |
| ImageNet, ResNet-50     | 250   | 0.015     | 250   | 5 at 0.0035     | 0.0035       | -                    |
| IMDb, LSTM (Adam)       | 75    | 0.001     | 150   | none            | 0            | -                    |

The text prints weight decays of "5×110^-2" and "3.5×110^-2", and a step size of 0.01 for the LSTM: we take table 10. It
does not say how many epochs there are, except for ImageNet (250 in all), nor whether the cosine begins after the
warm-up: we let it begin there, and end the training with it. The paper must go on: in tables 2 and 4 most of the best
epochs of ResNet-18 are 110 to 118, beyond warm-up and cosine. Augmentation is not mentioned: we crop and flip images of
CIFAR and ImageNet.
"""

from __future__ import annotations

from dataclasses import replace

from freewheel.recipes._recipe import Recipe
from freewheel.recipes._schedule import LRSchedule

TEXT = Recipe(
    name="async-lu",
    paper="async-lu",
    source="Async LU, section 4.1, weight decay from table 10",
    methods=("async-lu", "async-bu", "lap-sgd", "lpp-sgd", "bp"),
    data=("cifar10", "cifar100"),
    models=("resnet-18", "resnet-50"),
    epochs=115,
    batch_size=128,
    lr=0.015,
    momentum=0.9,
    weight_decay=0.005,
    schedule=LRSchedule(shape="cosine", t_max=110, warmup_epochs=5, warmup_lr=0.005),
    augment=True,
    seeds=3,
    metric="accuracy",
    epoch="best",
    over="mean",
    early_stopping=30,
    ours=("epochs", "augment", "weight_decay"),
)


def _column(data: str, model: str, t_max: int, warmup: int, target: float) -> Recipe:
    """A network on CIFAR, by table 10."""
    return replace(
        TEXT,
        name=f"async-lu-{data}-{model}",
        source=f"Async LU, table 10, {data}, {model}",
        data=(data,),
        models=(model,),
        epochs=warmup + t_max,
        schedule=replace(TEXT.schedule, t_max=t_max, warmup_epochs=warmup),
        target=target,
    )


IMAGENET = replace(
    TEXT,
    name="async-lu-imagenet",
    source="Async LU, section 4.1 and table 10, ImageNet",
    data=("imagenet",),
    models=("resnet-50",),
    epochs=250,
    batch_size=250,
    weight_decay=0.0035,
    schedule=replace(TEXT.schedule, t_max=250, warmup_lr=0.0035),
    seeds=1,
    ours=("augment", "weight_decay"),
)
IMDB = replace(
    TEXT,
    name="async-lu-imdb",
    source="Async LU, section 4.2 and table 10, IMDb",
    methods=("async-lu", "async-bu", "bp"),
    data=("imdb",),
    models=("lstm",),
    epochs=150,
    batch_size=75,
    optimizer="adam",
    lr=0.001,
    momentum=None,
    weight_decay=0.0,
    schedule=LRSchedule(shape="cosine", t_max=150),
    augment=False,
    ours=("epochs", "lr", "early_stopping"),
)
RECIPES = (
    _column("cifar100", "resnet-18", 100, 5, 0.60),
    _column("cifar100", "resnet-50", 120, 5, 0.63),
    _column("cifar10", "resnet-18", 105, 3, 0.87),
    _column("cifar10", "resnet-50", 120, 5, 0.89),
    IMAGENET,
    IMDB,
    TEXT,
)
