"""Max pooling of values and tangents in one kernel of a compiled pass."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules.utils import _pair

from freewheel.tangents._level import dual

_LARGEST = 9  # elements of a window; the kernel has code for each


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Choose the first largest value of each window, and its tangent, as torch does; NaN is the largest.

    No indices are stored, and what is computed from a convolution elementwise need not be stored for it, either.
    """
    (x, dx), size = unpack_dual(input), _pair(kernel_size)
    steps, pads = _pair(kernel_size if stride is None or stride == [] else stride), _pair(padding)
    plain = (
        not ceil_mode
        and not return_indices
        and _pair(dilation) == (1, 1)
        and all(p <= k // 2 for k, p in zip(size, pads))
    )
    if dx is None or not plain or math.prod(size) > _LARGEST or x.dim() not in (3, 4):
        return F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)  # pyright: ignore
    around = pads[1], pads[1], pads[0], pads[0]
    inside = F.pad(x.new_ones(x.shape[-2:], dtype=torch.bool), around)
    values, tangents = F.pad(x, around, value=-math.inf), F.pad(dx, around)
    ends = [n + 2 * p - k + 1 for n, p, k in zip(x.shape[-2:], pads, size)]

    def each(t: Tensor, at: tuple[int, ...]) -> Tensor:
        return t[..., at[0] : at[0] + ends[0] : steps[0], at[1] : at[1] + ends[1] : steps[1]]

    taps = [tuple(each(t, at) for t in (values, tangents, inside)) for at in product(*map(range, size))]
    best = taps[0][0]
    for value, _, _ in taps[1:]:
        best = torch.maximum(best, value)
    tangent = torch.zeros_like(best)
    for value, d, there in reversed(taps):  # the first one that is as large
        tangent = torch.where((value == best) & there, d, tangent)
    for value, d, _ in taps:  # the last NaN
        tangent = torch.where(value.isnan(), d, tangent)
    return dual(best, tangent)
