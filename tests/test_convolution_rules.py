"""Convolutions of values and tangents in compiled passes, against sums of plain ones."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import unpack_dual

from freewheel.tangents import dual, enter_level, leave_level
from freewheel.tangents._convolution import conv2d, convolution, joint_convolution, taps


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_elements_that_meet_only_padding_are_left_out_and_change_nothing():
    torch.manual_seed(0)
    cropped = 0
    for size, kernel, stride, padding, dilation in product(range(1, 6), range(1, 6), (1, 2, 3), range(4), (1, 2)):
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue  # torch refuses it
        x, w = drawn(2, 3, size, 4), drawn(5, 3, kernel, 3)
        options = (stride, 1), (padding, 1), (dilation, 1)
        assert torch.allclose(conv2d(x, w, None, *options), F.conv2d(x, w, None, *options), rtol=1e-12, atol=1e-12)
        found = taps(size, kernel, stride, padding, dilation)
        cropped += found.end - found.first < kernel
    assert cropped > 50


def test_the_kernel_of_a_single_pixel_is_a_matrix():
    x, w = drawn(2, 3, 1, 1), drawn(5, 3, 3, 3)
    used = drawn(5, 3, 3, 3)
    used[:, :, 1, 1] = w[:, :, 1, 1]
    assert torch.equal(conv2d(x, w, None, 1, 1), conv2d(x, used, None, 1, 1))
    assert torch.allclose(conv2d(x, w, None, 1, 1)[:, :, 0, 0], x[:, :, 0, 0] @ w[:, :, 1, 1].T, rtol=1e-12)


@pytest.mark.parametrize("make", [convolution, joint_convolution])
@pytest.mark.parametrize("has", list(product((True, False), repeat=3)), ids=str)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (7, (2, 3, 1, 1)),
        (1, (1, 1, 1, 1)),
        (2, (2, 1, 1, 1)),
        (5, (1, 0, 1, 2)),
        (5, (1, "same", 1, 1)),
        (4, (1, 2, 2, 1)),
    ],
    ids=str,
)
def test_values_and_tangents_are_those_of_torch(make, has, size, options):
    torch.manual_seed(0)
    groups = options[-1]
    x, w, b = drawn(2, 4, size, size), drawn(6, 4 // groups, 3, 3), drawn(6)
    given = [(t, torch.randn_like(t) if tangent else None) for t, tangent in zip((x, w, b), has)]
    dx, dw, db = (torch.zeros_like(t) if d is None else d for t, d in given)
    y = F.conv2d(x, w, b, *options)
    dy = F.conv2d(dx, w, None, *options) + F.conv2d(x, dw, db, *options)
    enter_level()
    try:
        out = make(conv2d)(*(t if d is None else dual(t, d) for t, d in given), *options)
        found = unpack_dual(out)
        assert torch.allclose(found.primal, y, rtol=1e-12, atol=1e-12)
        if any(has):
            assert found.tangent is not None
            assert torch.allclose(found.tangent, dy, rtol=1e-12, atol=1e-12)
        else:
            assert found.tangent is None
    finally:
        leave_level()
