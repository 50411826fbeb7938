"""Convolutions of values and tangents, with fewer kernels in compiled passes on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules.utils import _pair

from freewheel.tangents._level import dual

_SHORT = 2**20  # elements of an input whose convolution takes a GPU about as long as starting it


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


def joint_convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a rule with one kernel less, for kernels that are short and for the first layer.

    ::

        [y, y'] = [x, x']*w + [b, b'] + [0, x*w']      in the batch, where the kernels are short
        [y, y'] = x*[w, w'] + [b, b']                  in the channels, where x has no tangent

    A compiled pass writes x and x' next to each other, so that this copies nothing.
    """
    apart = convolution(function)

    def run(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        (x, dx), (w, dw), (b, db) = split_dual(input), split_dual(weight), split_dual(bias)
        batched = x.dim() == w.dim()
        if not batched or torch.is_autocast_enabled(x.device.type):
            return apart(input, weight, bias, *args, **kwargs)
        if dx is None and dw is not None and w.shape[1] == x.shape[1]:  # not in groups
            y, dy = function(x, torch.cat([w, dw]), None, *args, **kwargs).split(len(w), 1)
        elif dx is not None and x.numel() <= _SHORT:
            y, dy = function(torch.cat([x, dx]), w, None, *args, **kwargs).split(len(x))
            if dw is not None:
                dy = dy + function(x, dw, None, *args, **kwargs)
        else:
            return apart(input, weight, bias, *args, **kwargs)
        view = (-1, *[1] * (x.dim() - 2))
        return dual(y if b is None else y + b.view(view), dy if db is None else dy + db.view(view))

    return run


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


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Compute `F.conv2d` without the elements of the kernel that meet nothing but padding."""
    if isinstance(padding, str) or input.dim() != 4:
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)  # pyright: ignore[reportArgumentType]
    sizes = input.shape[2:], weight.shape[2:], _pair(stride), _pair(padding), _pair(dilation)
    down, across = (taps(*each) for each in zip(*sizes))
    weight = weight[:, :, down.first : down.end, across.first : across.end]
    pads = down.padding, across.padding
    if groups == 1 and pads == (0, 0) and weight.shape[2:] == input.shape[2:]:
        return _whole(input, weight, bias)
    return F.conv2d(input, weight, bias, stride, pads, dilation, groups)


def _whole(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a convolution whose kernel is as large as its input: a product of matrices."""
    rows, columns = (t.permute(0, 2, 3, 1).flatten(1) for t in (input, weight))  # as channels-last memory has them
    return F.linear(rows, columns, bias)[:, :, None, None]
