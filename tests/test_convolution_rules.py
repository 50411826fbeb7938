"""Convolutions of values and tangents in compiled passes, against sums of plain ones."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.forward_ad import unpack_dual

from freewheel.tangents import _convolution, dual, enter_level, leave_level
from freewheel.tangents._convolution import conv2d, convolution, joint_conv2d, taps


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


def test_a_large_input_of_few_channels_is_convolved_in_blocks(monkeypatch):
    """For every size, kernel and padding the same sums."""
    torch.manual_seed(0)
    monkeypatch.setattr(_convolution, "SHORT", 0)
    blocks, made = _convolution._blocks, []
    monkeypatch.setattr(_convolution, "_blocks", lambda t: made.append(blocks(t)) or made[-1])
    for size, kernel, padding, channels in product((7, 8, 9), (1, 2, 3, 5, 7), range(3), (1, 2, 3)):
        x, w = drawn(2, channels, size, size + 1), drawn(5, channels, kernel, 3)
        made.clear()
        found, wanted = conv2d(x, w, None, 2, (padding, 1)), F.conv2d(x, w, None, 2, (padding, 1))
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
        assert [t.shape[1] for t in made] == [4 * channels] * 2
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in made)


@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
@pytest.mark.parametrize("rule", [convolution(conv2d), joint_conv2d], ids=["apart", "joint"])
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
        (6, (1, 1, 1, 2)),
    ],
    ids=str,
)
def test_values_and_tangents_are_those_of_torch(rule, has, size, options, short, monkeypatch):
    monkeypatch.setattr(_convolution, "SHORT", 2**20 if short else 0)
    torch.manual_seed(0)
    groups = options[-1]
    x, w, b = drawn(2, 4, size, size), drawn(6, 4 // groups, 3, 3), drawn(6)
    given = [(t, torch.randn_like(t) if tangent else None) for t, tangent in zip((x, w, b), has)]
    dx, dw, db = (torch.zeros_like(t) if d is None else d for t, d in given)
    y = F.conv2d(x, w, b, *options)
    dy = F.conv2d(dx, w, None, *options) + F.conv2d(x, dw, db, *options)
    enter_level()
    try:
        out = rule(*(t if d is None else dual(t, d) for t, d in given), *options)
        found = unpack_dual(out)
        assert torch.allclose(found.primal, y, rtol=1e-12, atol=1e-12)
        if any(has):
            assert found.tangent is not None
            assert torch.allclose(found.tangent, dy, rtol=1e-12, atol=1e-12)
        else:
            assert found.tangent is None
    finally:
        leave_level()


def test_autocast_is_left_to_torch() -> None:
    """The bias is added in the type of the product."""
    x, w, b = (t.float() for t in (drawn(2, 3, 5, 5), drawn(4, 3, 3, 3), drawn(4)))
    enter_level()
    try:
        with torch.autocast("cpu", torch.float16):
            out = unpack_dual(joint_conv2d(x, dual(w, w), dual(b, b), 1, 1))
            plain = F.conv2d(x, w, b, 1, 1)
        assert out.primal.dtype is out.tangent.dtype is plain.dtype is torch.float16
        assert torch.equal(out.primal, plain)
        assert torch.equal(out.tangent, plain)
    finally:
        leave_level()
