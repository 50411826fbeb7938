"""Recipes: the step sizes of the papers, epoch by epoch, and what a trainer makes of them."""

from __future__ import annotations

import pickle
from math import cos, pi

import pytest
import torch

import freewheel as fw
from freewheel.recipes import RECIPES

STEPS = {  # (epochs, step size), one after the other, from the texts
    # Zhuang et al. 2019, V.A: 0.1, divided by 10 at 150, 225 and 275; 3 epochs at 0.01 first where it is deep
    "fdg": [(150, 0.1), (75, 0.01), (50, 0.001), (25, 0.0001)],
    "fdg-warmup": [(3, 0.01), (147, 0.1), (75, 0.01), (50, 0.001), (25, 0.0001)],
    # Xu et al. 2020, section 5
    "dsp": [(150, 0.01), (75, 0.001), (75, 0.0001)],
    "dsp-resnet-1001": [(100, 0.1), (50, 0.01), (50, 0.001), (50, 0.0001)],
    "dsp-vgg-resnext": [(100, 0.01), (50, 0.001), (50, 0.0001)],
    "dsp-imagenet": [(30, 0.1), (30, 0.01), (20, 0.001), (10, 0.0001)],
    # Zhao et al. 2023, 6.1: no schedule
    "asyncfgd": [(30, 0.001)],
    "asyncfgd-transfer": [(30, 0.001)],
}
COSINES = {  # epochs in all, of the warm-up, its step size, the step size after it, T_max: Async LU, 4.1 and table 10
    "async-lu": (115, 5, 0.005, 0.015, 110),
    "async-lu-cifar100-resnet-18": (105, 5, 0.005, 0.015, 100),
    "async-lu-cifar100-resnet-50": (125, 5, 0.005, 0.015, 120),
    "async-lu-cifar10-resnet-18": (108, 3, 0.005, 0.015, 105),
    "async-lu-cifar10-resnet-50": (125, 5, 0.005, 0.015, 120),
    "async-lu-imagenet": (250, 5, 0.0035, 0.015, 250),
    "async-lu-imdb": (150, 0, None, 0.001, 150),
}


def by_hand(name: str) -> list[float]:
    if name in STEPS:
        return [lr for epochs, lr in STEPS[name] for _ in range(epochs)]
    epochs, warmup, low, lr, t_max = COSINES[name]
    return [low] * warmup + [lr * (1 + cos(pi * e / t_max)) / 2 for e in range(epochs - warmup)]


def test_each_recipe_has_its_steps_by_hand():
    assert {*STEPS, *COSINES} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_step_sizes_are_those_of_the_paper(name: str):
    """In every epoch, by the optimizer and the scheduler that a trainer gets, after they have been sent elsewhere."""
    recipe = RECIPES[name]
    made = pickle.loads(pickle.dumps(recipe.trainer_options()))
    assert made["scheduler_every"] == "epoch"
    optimizer = made["optimizer"]([torch.zeros(1, requires_grad=True)])
    scheduler, found = made["scheduler"] and made["scheduler"](optimizer), []
    for _ in range(recipe.epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    assert found == pytest.approx(by_hand(name), rel=1e-12)
    assert recipe.schedule.step_sizes(recipe.lr, recipe.epochs) == pytest.approx(found, rel=1e-12)


SETTINGS = {  # epochs, batch size, momentum, weight decay, seeds, metric, epoch, statistic
    "fdg": (300, 128, 0.9, 0.0005, 3, "error", "last", "median"),
    "fdg-warmup": (300, 128, 0.9, 0.0005, 3, "error", "last", "median"),
    "dsp": (300, 128, 0.9, 0.0005, 1, "accuracy", "best", "mean"),
    "dsp-resnet-1001": (250, 128, 0.9, 0.0002, 1, "accuracy", "best", "mean"),
    "dsp-vgg-resnext": (200, 128, 0.9, 0.0005, 1, "accuracy", "best", "mean"),
    "dsp-imagenet": (90, 256, 0.9, 0.0001, 1, "accuracy", "best", "mean"),
    "async-lu-cifar100-resnet-18": (105, 128, 0.9, 0.005, 3, "accuracy", "best", "mean"),
    "async-lu-imagenet": (250, 250, 0.9, 0.0035, 1, "accuracy", "best", "mean"),
    "async-lu-imdb": (150, 75, None, 0.0, 3, "accuracy", "best", "mean"),
    "asyncfgd": (30, 64, None, 0.0, 1, "accuracy", "last", "mean"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_other_settings(name: str):
    r = RECIPES[name]
    found = (r.epochs, r.batch_size, r.momentum, r.weight_decay, r.seeds, r.metric, r.epoch, r.over)
    assert found == SETTINGS[name]


def test_the_recipe_of_a_paper_that_suits():
    def name(*args, **kwargs):
        return fw.recipes.find(*args, **kwargs).name

    assert name("fdg", model="resnet-56", data="cifar10", stages=2) == "fdg"
    assert name("fdg", model="resnet-110", data="cifar100", stages=2) == "fdg-warmup"
    assert name("fdg", model="resnet-56", data="cifar10", stages=3) == "fdg-warmup"
    assert name("fdg", model="digits-cnn", data="digits", stages=4) == "fdg-warmup"
    assert name("fdg-warmup", model="resnet-20", stages=2) == "fdg-warmup", "a name of its own is taken as it is"
    assert name("dsp", model="resnet-98") == "dsp"
    assert name("dsp", model="resnet-18", data="imagenet") == "dsp-imagenet"
    assert name("async-lu", model="resnet-18", data="cifar10") == "async-lu-cifar10-resnet-18"
    assert name("async-lu", model="resnet-18", data="digits") == "async-lu-cifar100-resnet-18"
    assert name("async-lu", model="lstm", data="imdb") == "async-lu-imdb"
    assert name("async-lu", model="digits-cnn", data="digits") == "async-lu"
    with pytest.raises(ValueError, match="unknown recipe 'fgd': did you mean 'fdg'"):
        fw.recipes.find("fgd")
