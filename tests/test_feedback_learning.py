"""Fixed random feedback learns: whole trainings, seeded and in one thread, so that they always end the same."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from command_line import Result, freewheel
from spread import rarely


def learned(method: fw.Method, layers: int, activation: type[nn.Module], *, norm: bool = False) -> float:
    """The accuracy on digits of a stack of a few hidden layers, in two stages."""
    torch.manual_seed(0)
    sizes = [64] + [128] * layers
    hidden = [
        nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b) if norm else nn.Identity(), activation())
        for a, b in pairwise(sizes)
    ]
    stages = [nn.Sequential(nn.Flatten(), *hidden), nn.Linear(128, 10)]
    data = fw.data.load("digits")
    adam = partial(torch.optim.Adam, lr=2e-3)
    trainer = fw.Trainer(
        stages, check=False, method=method, loss=F.cross_entropy, optimizer=adam, runtime="simulate", seed=0, threads=1
    )
    trainer.fit(data.train, 12, progress=False)
    score = trainer.evaluate(data.test).metric
    assert score is not None
    return score


@pytest.mark.parametrize(
    ("method", "layers"),
    [(fw.FA(), 2), rarely(fw.DFA(), 2), rarely(fw.DFA(pipelined=True), 2), (fw.DRTP(), 2), rarely(fw.SDFA(), 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_digits_are_learned_with_tanh(method, layers):
    assert learned(method, layers, nn.Tanh) >= 0.9


def test_the_sign_of_the_error_needs_a_norm_beside_relu():
    """As table 1 of the AsyncFGD paper has it: plain ReLU stacks fail, those with BatchNorm learn."""
    assert learned(fw.SDFA(), 2, nn.ReLU) < 0.8
    assert learned(fw.SDFA(), 2, nn.ReLU, norm=True) >= 0.9


def typed(*arguments: str) -> Result:
    return freewheel(*arguments, columns=300)


def test_typed_without_more_it_takes_what_suits_it():
    few = ("--epochs", "1", "--limit", "100", "--threads", "1", "--no-compare")
    said = typed("train", "--method", "drtp", "--at", "fc2", "--at", "fc3", *few).stdout
    assert "model    fcs-tanh" in said
    assert "method   drtp: delays 0 0 0, locks left none" in said
    assert "steps    adam: lr 0.002" in said
    within = typed(
        "train", "--method", "drtp", "--at", "ac1", *few
    ).stdout  # a block is cut, and its gradient waited for
    assert "method   drtp: delays 0 0, locks left forward, backward, update" in within


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --method dfa --model resnet-20", r"error: stages\[0\]\.layer1\.0 \(BasicBlock\) is not a plain stack"),
        ("train --method fa --data digits-rows", r"error: stages\[0\]\.\S+ is a RNN: feedback supports Linear"),
        ("plan fa -k 2 -o own=3", "error: -o own=3: feedback weights are tensors, which can only be passed in Python"),
        ("plan dfa -k 2 -o bound=-1", "error: bound=-1: give the largest feedback weight"),
    ],
)
def test_typed_nonsense_is_refused_in_a_line(arguments, words):
    result = typed(*arguments.split())
    assert result.exit_code == 2
    assert re.search(words, result.output)
