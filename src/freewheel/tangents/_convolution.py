"""Convolutions of values and tangents, with fewer kernels in compiled passes on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules.utils import _pair

from freewheel.tangents._level import dual

SHORT = 2**20  # elements of an input whose convolution takes a GPU about as long as starting it
_FEW = 4  # channels, for which kernels are slow


def split_dual(tensor: Tensor | None) -> tuple[Any, Tensor | None]:
    """Return the value and the tangent of a tensor."""
    return unpack_dual(tensor) if tensor is not None else (None, None)


def convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the rule y = x*w + b; y' = x'*w + x*w' + b', with y computed last to reduce the peak memory."""

    def run(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        (x, dx), (w, dw), (b, db) = split_dual(input), split_dual(weight), split_dual(bias)
        if (dx is None and dw is None) or torch.is_autocast_enabled(x.device.type):
            return function(input, weight, bias, *args, **kwargs)
        if dx is None:
            dy = function(x, dw, db, *args, **kwargs)
        else:
            dy = function(dx, w, db, *args, **kwargs)
            if dw is not None:
                dy = dy.add_(function(x, dw, None, *args, **kwargs))
        return dual(function(x, w, b, *args, **kwargs), dy)

    return run


def joint_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Compute y and y' with fewer kernels: the rule of compiled passes on a GPU.

    ::

        [y, y'] = [x, x']*w + [b, b'] + [0, x*w']      in the batch, where the kernels are short
        [y, y'] = x*[w, w'] + [b, b']                  in the channels, where x has no tangent: the first layer

    A compiled pass writes x and x' next to each other, so that this copies nothing. Where the kernels are not short,
    all convolutions are apart: that takes less memory.
    """
    (x, dx), (w, dw), (b, db) = split_dual(input), split_dual(weight), split_dual(bias)
    short, grouped = x.numel() <= SHORT, w.shape[1] != x.shape[1]
    if x.dim() != w.dim() or torch.is_autocast_enabled(x.device.type):
        return _plain(input, weight, bias, *args, **kwargs)
    if dx is not None and short:
        (both,) = conv2ds(torch.cat([x, dx]), [w], *args, **kwargs)
        y, dy = both.split(len(x))
        dy = dy if dw is None else dy + conv2d(x, dw, None, *args, **kwargs)
    elif dx is None and dw is not None and short and not grouped:
        (both,) = conv2ds(x, [torch.cat([w, dw])], *args, **kwargs)
        y, dy = both.split(len(w), 1)
    elif dx is None and dw is not None:
        dy, y = conv2ds(x, [dw, w], *args, **kwargs)
    else:
        return _apart(input, weight, bias, *args, **kwargs)
    view = (-1, *[1] * (x.dim() - 2))
    return dual(y if b is None else y + b.view(view), dy if db is None else dy + db.view(view))


class Taps(NamedTuple):
    """The elements of a kernel along one dimension that meet the input, and the padding that remains.

    A network for large images ends with few pixels where images are small. There, kernels see mostly padding::

        one pixel, 3x3, padding 1      . . .
                                       . x .      a single element counts: a product of matrices
                                       . . .
    """

    first: int
    end: int
    padding: int


def taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Taps:
    """Return which elements of a kernel meet an input of this size; all, if they cannot be taken out alone.

    Example:
        >>> taps(1, 3, 1, 1, 1), taps(2, 3, 2, 1, 1), taps(2, 3, 1, 1, 1)
        (Taps(first=1, end=2, padding=0), Taps(first=1, end=3, padding=0), Taps(first=0, end=3, padding=1))
    """

    def outputs(kernel: int, padding: int) -> int:
        return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

    count = outputs(kernel, padding)
    places = {(out * stride - padding + tap * dilation, tap) for out in range(count) for tap in range(kernel)}
    met = [tap for place, tap in places if 0 <= place < size]
    if met:
        found = Taps(min(met), max(met) + 1, padding - min(met) * dilation)
        if found.padding >= 0 and outputs(found.end - found.first, found.padding) == count:
            return found
    return Taps(0, kernel, padding)


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Compute `F.conv2d` in the way of `conv2ds`."""
    (out,) = conv2ds(input, [weight], *args, **kwargs)
    return out if bias is None else out + bias.view(-1, 1, 1)


def conv2ds(
    input: Tensor,
    weights: Sequence[Tensor],
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> list[Tensor]:
    """Compute `F.conv2d` with each of the weights, all of one shape.

    Elements of the kernel that meet nothing but padding are left out. A large input of few channels is rearranged once,
    for all weights.
    """
    if isinstance(padding, str):
        return [F.conv2d(input, w, None, stride, padding, dilation, groups) for w in weights]
    sizes = input.shape[2:], weights[0].shape[2:], _pair(stride), _pair(padding), _pair(dilation)
    down, across = (taps(*each) for each in zip(*sizes))
    weights = [w[:, :, down.first : down.end, across.first : across.end] for w in weights]
    pads, one = (down.padding, across.padding), groups == 1
    if one and pads == (0, 0) and weights[0].shape[2:] == input.shape[2:]:
        return [_whole(input, w) for w in weights]
    if (
        one
        and input.shape[1] <= _FEW
        and input.numel() > SHORT
        and _pair(stride) == (2, 2)
        and _pair(dilation) == (1, 1)
    ):
        return _in_blocks(input, weights, pads)
    return [F.conv2d(input, w, None, stride, pads, dilation, groups) for w in weights]


def _whole(input: Tensor, weight: Tensor) -> Tensor:
    """Compute a convolution whose kernel is as large as its input: a product of matrices."""
    rows, columns = (t.permute(0, 2, 3, 1).flatten(1) for t in (input, weight))  # as channels-last memory has them
    return F.linear(rows, columns)[:, :, None, None]


def _in_blocks(input: Tensor, weights: Sequence[Tensor], pads: tuple[int, int]) -> list[Tensor]:
    """Compute a convolution of stride 2 as one of stride 1 on blocks of 2x2 pixels.

    A block has all their channels, so that kernels for several channels take it::

        3 channels, 224x224, 7x7, stride 2, padding 3       12 channels, 115x115, 4x4
    """
    kernel = [-(-k // 2) for k in weights[0].shape[2:]]
    outputs = [(n + 2 * p - k) // 2 + 1 for n, p, k in zip(input.shape[2:], pads, weights[0].shape[2:])]
    high, wide = (2 * (n + k - 1) for n, k in zip(outputs, kernel))
    (down, across), (rows, columns) = pads, input.shape[2:]
    padded = F.pad(input, (across, wide - columns - across, down, high - rows - down))
    made = _blocks(padded)
    return [F.conv2d(made, _blocks(F.pad(w, (0, w.shape[3] % 2, 0, w.shape[2] % 2)))) for w in weights]


def _blocks(t: Tensor) -> Tensor:
    """Return blocks of 2x2 pixels, channels last in memory."""
    n, c, h, w = t.shape
    blocks = t.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return blocks.reshape(n, h // 2, w // 2, 4 * c).permute(0, 3, 1, 2)


_apart, _plain = convolution(conv2d), convolution(F.conv2d)
