"""Graphs whose backward never comes are freed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from freewheel.stage._weights import Current


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.ReLU(inplace=True), nn.BatchNorm1d(8)], ids=str)
def test_a_forward_without_a_backward_is_freed(layer):
    module = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    with Current(module).forward(0):
        out = module(x)
    alive = weakref.ref(x)
    del out, x
    gc.collect()
    assert alive() is None
