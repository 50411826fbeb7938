"""Fixed random feedback learns: whole trainings, seeded and in one thread, so that they always end the same."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw


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
        stages, method=method, loss=F.cross_entropy, optimizer=adam, runtime="simulate", seed=0, threads=1
    )
    trainer.fit(data.train, 12, progress=False)
    score = trainer.evaluate(data.test).metric
    assert score is not None
    return score


@pytest.mark.parametrize(
    ("method", "layers"),
    [(fw.FA(), 2), (fw.DFA(), 2), (fw.DFA(pipelined=True), 2), (fw.DRTP(), 2), (fw.SDFA(), 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_digits_are_learned_with_tanh(method, layers):
    assert learned(method, layers, nn.Tanh) >= 0.9


def test_the_sign_of_the_error_needs_a_norm_beside_relu():
    """As table 1 of the AsyncFGD paper has it: plain ReLU stacks fail, those with BatchNorm learn."""
    assert learned(fw.SDFA(), 2, nn.ReLU) < 0.8
    assert learned(fw.SDFA(), 2, nn.ReLU, norm=True) >= 0.9
