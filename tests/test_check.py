"""The check of the first batch: it refuses what would be trained wrongly, before a weight changes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel.check import _check
from habits import messages
from rows import ROWS, batches, network, same_bits, tensors, trainer


@pytest.fixture
def looked(monkeypatch):
    """The number of checks that came to their end."""
    ended = []
    real = _check._Check.gradients

    def gradients(self, expected):
        real(self, expected)
        ended.append(len(expected))

    monkeypatch.setattr(_check._Check, "gradients", gradients)
    return ended


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_it_looks_at_every_method_and_changes_nothing(row, looked):
    results = []
    for check in (True, False):
        stages = network(3)
        torch.manual_seed(7)
        trainer(stages, row.make(3), check=check).fit(batches(4))
        results.append([*tensors(*stages), torch.rand(2)])
    assert same_bits(*results)
    assert len(looked) == 1
    assert looked[0] >= 1


def refused(stages, line, method="bp", loss=F.cross_entropy, data=None, **options):
    before = tensors(*stages)
    with pytest.raises((ValueError, fw.StageError), match=line):
        trainer(stages, method, loss=loss, check=True, **options).fit(data or batches(3))
    assert same_bits(before, tensors(*stages))


CHAIN = ("bp", "gpipe", "pipedream", "fdg", "dsp", "fr")


@pytest.mark.parametrize("method", CHAIN)
def test_a_lost_gradient(method, monkeypatch):
    """Complex numbers between stages, if only floating-point numbers had gradients."""
    for user in ("_recording_stage", "_graph"):
        monkeypatch.setattr(f"freewheel.credit.{user}.differentiable", torch.Tensor.is_floating_point)
    case = messages.fourier()
    refused(case.stages, "the gradient of 'stages.0.inner.weight' is missing", method, data=case.batches)


@pytest.mark.parametrize("method", CHAIN)
def test_tensors_that_are_not_found(method, monkeypatch):
    """A class between stages, if it were taken for a leaf."""
    monkeypatch.setattr("freewheel.stage._trees.check_leaf", lambda leaf: None)
    case = messages.as_any_class()
    refused(case.stages, "stages.0", method, data=case.batches)


def test_a_penalty_in_the_loss_on_weights_of_other_stages():
    stages = network(2)

    def loss(out, y):
        return F.cross_entropy(out, y) + 0.01 * sum(p.pow(2).sum() for stage in stages for p in stage.parameters())

    refused(stages, "uses 'stages.0.0.0.weight' past its module.*weight_decay", loss=loss)


def test_a_penalty_on_the_last_stage_alone_is_right():
    """As plain PyTorch has it."""
    results = []
    for plain in (True, False):
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)]

        def loss(out, y, last=stages[1]):
            return F.cross_entropy(out, y) + 0.1 * last.weight.pow(2).sum()

        if plain:
            optimizer = torch.optim.SGD([p for s in stages for p in s.parameters()], lr=0.05, momentum=0.9)
            for x, y in batches(4):
                optimizer.zero_grad()
                loss(stages[1](stages[0](x)), y).backward()
                optimizer.step()
        else:
            trainer(stages, "bp", loss=loss, check=True).fit(batches(4))
        results.append(tensors(*stages))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


def test_a_loss_without_a_graph():
    refused(network(2), "without a graph", loss=lambda out, y: F.cross_entropy(out.detach(), y))


class Draws(nn.Module):
    """Skips itself now and then."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.inner = draw, nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x) if self.draw() > 0.5 else x + 0 * self.inner(x)


@pytest.mark.parametrize(("draw", "name"), [(random.random, "random"), (lambda: np.random.rand(), "numpy.random")])
def test_draws_that_all_stages_would_share(draw, name):
    refused([Draws(draw), nn.Linear(6, 3)], rf"stages\[0\] draws from {name}, which all stages share")


class Other(nn.Module):
    """A network that is split."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(self.b(self.a(x).tanh()).tanh())


def test_stages_that_are_not_the_network():
    model = Other()
    stages = fw.split(model, example=torch.zeros(2, 6), at=["b"])
    stages[1].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    refused(stages, "the stages compute something else than the whole network, from 'b' on")


def test_late_backwards_that_forget_the_weights_of_their_forward(monkeypatch):
    """Under copies of weights, if the copy were the live weights at the time of the backward."""
    from freewheel.stage import Current, _weights

    monkeypatch.setattr(_weights, "Stash", lambda module, predict, fixed: Current(module))
    refused(network(3), "the gradient of 'stages.*' is not the one found", "pipedream")


def test_it_can_be_turned_off():
    stages = [Draws(random.random), nn.Linear(6, 3)]
    before = tensors(*stages)
    trainer(stages, "bp", check=False).fit(batches(3))
    assert not same_bits(before, tensors(*stages))


def test_a_network_that_needs_its_batch_size(looked):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x):
            return self.inner(x.view(9, 6))

    trainer([nn.Linear(6, 6), Fixed()], "pipedream", check=True).fit(batches(3))
    assert looked == [2]


def test_masks_of_gradients_that_copies_of_weights_would_not_have(monkeypatch):
    monkeypatch.setattr("freewheel.stage._weights.hooked", lambda copy, weight: copy)
    stages = network(3)
    stages[0][0][0].weight.register_hook(lambda g: g * 0)
    refused(stages, "the gradient of 'stages.0.*weight' is not the one found", "pipedream")


class Scaled(nn.Module):
    """A loss with a weight."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, out, y):
        return F.cross_entropy(out * self.scale, y)


def test_a_loss_whose_weights_no_stage_has(monkeypatch):
    monkeypatch.setattr("freewheel.trainer._setup.with_loss", lambda modules, loss: list(modules))
    refused(network(2), "no stage trains 'loss.scale'", loss=Scaled())


@pytest.mark.parametrize("fixed", ["backward", "generators"])
def test_checkpoints_that_are_run_again_otherwise(fixed, monkeypatch):
    """Activation checkpointing, if the backward had the newest weights, or a generator of its own."""
    from freewheel.stage import Stash, _random, _weights
    from habits.autograd import checkpointed

    case = checkpointed()
    if fixed == "backward":
        monkeypatch.setattr(Stash, "backward", _weights.WeightVersions.backward)
    else:
        monkeypatch.setattr(_random.SeededDraws, "generator", lambda self, device: torch.default_generator)
    refused(case.stages, "the gradient of|which has changed|seeds torch's generator", "pipedream", data=case.batches)


def test_weights_in_lists_that_would_be_the_live_ones(monkeypatch):
    from freewheel.stage import _weights
    from habits.autograd import parameters_in_lists

    def registered(module, live):
        found = [(child._parameters, name, p) for child in module.modules() for name, p in child._parameters.items()]
        return [[(holder, name) for holder, name, p in found if p is weight] for weight in live]

    monkeypatch.setattr(_weights, "slots_of", registered)
    monkeypatch.setattr(_weights.WeightVersions, "check", lambda *arguments: None)
    case = parameters_in_lists()
    refused(case.stages, "layer.weight|modified by an inplace operation", "pipedream", data=case.batches)
