"""Layers under feedback: while a stage runs, hooks on its Linear and Conv2d layers change what autograd records.

::

    passing_back   x ──┬─ detach ─▶ layer ─▶ out ─▶      backward:  layer gets g, as ever;  x gets Bᵀg, not Wᵀg
                       └───────────── B ──────┘
    cut_off        x ──▌ end of a block        ─▶ layer ─▶ out      backward:  x gets what its feedback makes

The layer itself runs as it is, so that the gradients of its weight and bias are autograd's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from freewheel.feedback._weights import FeedbackWeights

Layer = nn.Linear | nn.Conv2d
Numbered = Sequence[tuple[Layer, int]]  # layers and their numbers


def padding_of(layer: nn.Conv2d) -> tuple[int, ...] | None:
    """The zeros on each side of each dimension; None where it is padded otherwise.

    Example:
        >>> padding_of(nn.Conv2d(1, 1, 3, padding="same")), padding_of(nn.Conv2d(1, 1, 2, padding="same"))
        ((1, 1), None)
    """
    if layer.padding_mode != "zeros":
        return None
    if not isinstance(layer.padding, str):
        return tuple(layer.padding)
    around = [d * (k - 1) if layer.padding == "same" else 0 for d, k in zip(layer.dilation, layer.kernel_size)]
    return None if any(total % 2 for total in around) else tuple(total // 2 for total in around)


@contextmanager
def cut_off(layers: Numbered) -> Iterator[list[tuple[int, Tensor]]]:
    """Inside, no gradient passes a layer; gives the layers' inputs that have one to get, with the layers' numbers."""
    ends: list[tuple[int, Tensor]] = []

    def before(number: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
            x, *others = args
            if not x.requires_grad:
                return None
            ends.append((number, x))
            return x.detach(), *others

        return hook

    handles = [layer.register_forward_pre_hook(before(number)) for layer, number in layers]
    try:
        yield ends
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def passing_back(layers: Numbered, weights: FeedbackWeights) -> Iterator[None]:
    """Inside, gradients pass the layers through their feedback weights."""
    entered: list[Tensor] = []  # what has gone into the layer that is running

    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        x, *others = args
        entered.append(x)
        return x.detach(), *others

    def after(number: int) -> Any:
        def hook(module: Layer, args: tuple[Any, ...], out: Tensor) -> Any:
            x = entered.pop()
            if not x.requires_grad or not torch.is_grad_enabled():
                return out
            return _PassBack.apply(out, x, weights.of(number, module.weight.shape, module.weight), module)

        return hook

    handles = [layer.register_forward_pre_hook(before) for layer, _ in layers]
    handles += [layer.register_forward_hook(after(number)) for layer, number in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _PassBack(torch.autograd.Function):
    """A layer's output, unchanged; the gradient goes on to the layer, and through feedback weights to its input."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.layer, ctx.shape, ctx.dtype = layer, x.shape, x.dtype
        ctx.mark_dirty(out)  # so that what follows may change it in place
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,), (weights,), layer = gradients, ctx.saved_tensors, ctx.layer
        weights = weights.to(gradient.dtype)
        if isinstance(layer, nn.Conv2d):
            padding = padding_of(layer)
            assert padding is not None
            geometry: Any = layer.stride, padding, layer.dilation, layer.groups
            back = conv2d_input(ctx.shape, weights, gradient, *geometry)
        else:
            back = gradient @ weights
        return gradient, back.to(ctx.dtype), None, None
