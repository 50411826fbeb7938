"""Recipes: the step sizes of the papers, epoch by epoch, and what a trainer makes of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import cos, pi

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
from freewheel.recipes import RECIPES, LRSchedule
from rows import batches, network, same_bits, tensors, trainer
from spread import rarely, spread
from test_schedulers import halves, net

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
    assert name("dsp", data="imagenet") == "dsp-imagenet"
    assert name("fdg") == name("fdg", data="cifar10") == "fdg"
    assert name("async-lu", model="lstm", data="imdb") == "async-lu-imdb"
    assert name("async-lu", model="digits-cnn", data="digits") == "async-lu"
    with pytest.raises(ValueError, match="unknown recipe 'fgd': did you mean 'asyncfgd'"):
        fw.recipes.find("fgd")


# ---- trained so ----


def scaled(name: str, epochs: int, every: str = "epoch") -> fw.recipes.Recipe:
    recipe = RECIPES[name].scaled(epochs)
    return replace(recipe, schedule=replace(recipe.schedule, every=every))


STEPS_OF_TWELVE = {  # 300 epochs in proportion, with milestones at 6, 9 and 11; 105 epochs, with a cosine of 11
    "fdg-warmup": [0.01, *[0.1] * 5, *[0.01] * 3, *[0.001] * 2, 0.0001],
    "async-lu-cifar100-resnet-18": [0.005, *(0.015 * (1 + cos(pi * e / 11)) / 2 for e in range(11))],
}


@spread(name=STEPS_OF_TWELVE, every=["epoch", "batch"], runtime=["simulate", "threads", rarely("processes")])
def test_a_trainer_is_a_plain_loop_with_those_step_sizes(name: str, every: str, runtime: str):
    """A cosine by batch has other step sizes between the beginnings of epochs."""
    recipe, data, plain = scaled(name, 12, every), batches(4), net()
    stages = halves(net())
    made = trainer(stages, "bp", runtime=runtime, **recipe.trainer_options(len(data)))
    made.fit(data, recipe.epochs)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0, momentum=0.9, weight_decay=recipe.weight_decay)
    for epoch, lr in enumerate(STEPS_OF_TWELVE[name]):
        for batch, (x, y) in enumerate(data):
            if every == "batch" and recipe.schedule.shape == "cosine" and epoch:
                lr = 0.015 * (1 + cos(pi * (epoch - 1 + batch / 4) / 11)) / 2
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimizer.step()
    for ours, theirs in zip(tensors(*stages), tensors(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@spread(method=["fdg", "pipedream", "dgl"], runtime=["threads", rarely("processes")])
def test_a_recipe_is_the_same_on_every_runtime(method: str, runtime: str):
    def trained(runtime: str) -> list[torch.Tensor]:
        stages = network(2)
        trainer(stages, method, runtime=runtime, **scaled("fdg-warmup", 12).trainer_options()).fit(batches(3), 12)
        return tensors(*stages)

    assert same_bits(trained(runtime), trained("simulate"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": "steps"}, "unknown shape 'steps'"),
        ({"shape": "multistep"}, r"milestones=\(\) with shape='multistep': multistep needs them"),
        ({"milestones": (3,)}, r"milestones=\(3,\) with shape='constant': multistep needs them, and no other"),
        ({"shape": "multistep", "milestones": (3, 3)}, r"milestones=\(3, 3\) after 0 epochs of warm-up: each must be"),
        ({"shape": "multistep", "milestones": 3}, "milestones=3: give a list of epochs"),
        ({"warmup_epochs": 3}, "warmup_lr=None with warmup_epochs=3: give both, or neither"),
        ({"warmup_lr": 0.1}, "warmup_lr=0.1 with warmup_epochs=0: give both, or neither"),
        ({"t_max": 0, "shape": "cosine"}, "t_max=0: give 1 or more"),
        ({"every": "week"}, "unknown every 'week'"),
    ],
    ids=str,
)
def test_wrong_schedules(arguments: dict, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        LRSchedule(**arguments)


def test_a_warm_up_is_not_larger_than_what_follows():
    make = LRSchedule(warmup_epochs=1, warmup_lr=0.2).factory(3)
    with pytest.raises(ValueError, match=r"warmup_lr=0.2 with lr=0.1: a warm-up has the smaller step size"):
        make(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))


# ---- what papers report ----


def history(*metrics: float) -> fw.History:
    record = {"samples": 1, "loss": 0.0, "seconds": 2.5, "images_per_second": 1.0, "busy": (), "staleness": ()}
    scores = [fw.Score(loss=0.0, metric=metric, samples=1, metrics={"accuracy": metric}) for metric in metrics]
    return fw.History([fw.Epoch(epoch=i, batches=i, validation=each, **record) for i, each in enumerate(scores)])


def test_the_median_error_of_the_last_epoch_of_three_runs():
    runs = [history(0.5, 0.9, 0.8), history(0.5, 0.95), history(0.9, 0.7)]
    found = RECIPES["fdg"].statistics(runs)  # errors of 0.2, 0.05 and 0.3
    assert found.over(RECIPES["fdg"].over) == pytest.approx(0.2)
    assert found.mean == pytest.approx(0.55 / 3)
    assert found.deviation == pytest.approx(((0.05 / 3) ** 2 + (0.4 / 3) ** 2 + (0.35 / 3) ** 2) ** 0.5 / 2**0.5)
    assert (found.least, found.most) == pytest.approx((0.05, 0.3))
    best = RECIPES["dsp"].statistics(runs)
    assert best.values == (0.9, 0.95, 0.9)
    assert fw.recipes.Statistics.of([0.5]).deviation is None
    assert RECIPES["dsp"].result(fw.History()) is None
    with pytest.raises(ValueError, match="values is empty"):
        RECIPES["dsp"].statistics([])


def test_the_time_to_an_accuracy():
    run = history(0.5, 0.87, 0.8, 0.9)
    assert run.time_to(0.87) == (2, 5.0)
    assert run.time_to(0.9) == (4, 10.0)
    assert run.time_to(0.91) is None


@spread(runtime=["simulate", "threads"])
def test_a_target_ends_a_fit(runtime: str):
    losses: list[float] = []
    stages = network(2)
    made = trainer(stages, "pipedream", runtime=runtime)
    free = made.fit(batches(6), epochs=6, validate=batches(2)).epochs
    goal = sorted(epoch.validation.loss for epoch in free)[2]
    stop = fw.StopAt(target=goal, monitor="loss")
    found = trainer(network(2), "pipedream", runtime=runtime).fit(
        batches(6), epochs=6, validate=batches(2), callbacks=[stop, lambda end: losses.append(end.record.loss)]
    )
    expected = next(i for i, epoch in enumerate(free) if epoch.validation.loss <= goal)
    assert len(found.epochs) == len(losses) == expected + 1
    assert found.stopped
