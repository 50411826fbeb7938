"""Hooks on Linear and Conv2d layers that change what autograd records while a stage runs.

::

    feedback_backward   x ──┬─ detach ─▶ layer ─▶ out ─▶     backward:  the layer gets g;  x gets Bᵀg, not Wᵀg
                            └───────────── B ──────┘
    detached_inputs     x ──▌ end of a block ─▶ layer ─▶ out backward:  x gets the gradient of its feedback

The layer itself is unchanged, and autograd computes the gradients of its weight and bias.
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
    """Return the zeros on each side of each dimension; None for any other padding.

    Example:
        >>> padding_of(nn.Conv2d(1, 1, 3, padding="same")), padding_of(nn.Conv2d(1, 1, 2, padding="same"))
        ((1, 1), None)
    """
    sides = layer._reversed_padding_repeated_twice[::-1]  # right and left of each dimension
    return tuple(sides[::2]) if layer.padding_mode == "zeros" and sides[::2] == sides[1::2] else None


@contextmanager
def detached_inputs(layers: Numbered) -> Iterator[list[tuple[int, Tensor]]]:
    """Detach the layers' inputs inside the context; its value collects those that need a gradient, with numbers."""
    inputs: list[tuple[int, Tensor]] = []

    def before(number: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = _input(args, kwargs)
            if not x.requires_grad:
                return None
            inputs.append((number, x))
            return _detached(args, kwargs)

        return hook

    handles = [layer.register_forward_pre_hook(before(number), with_kwargs=True) for layer, number in layers]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def feedback_backward(layers: Numbered, weights: FeedbackWeights) -> Iterator[None]:
    """Backpropagate through feedback weights for forwards inside the context."""
    entered: list[Tensor] = []  # the inputs of the running layers

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entered.append(_input(args, kwargs))
        return _detached(args, kwargs)

    def after(number: int) -> Any:
        def hook(module: Layer, args: tuple[Any, ...], out: Tensor) -> Any:
            x = entered.pop()
            if not x.requires_grad or not torch.is_grad_enabled():
                return out
            return _Feedback.apply(out, x, weights.of(number, module.weight.shape, module.weight), module)

        return hook

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer, _ in layers]
    handles += [layer.register_forward_hook(after(number)) for layer, number in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a layer's input, given by position or by name."""
    return args[0] if args else kwargs["input"]


def _detached(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a layer's arguments with its input detached."""
    x = _input(args, kwargs).detach()
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "input": x})


class _Feedback(torch.autograd.Function):
    """Identity on a layer's output; the backward also sends the gradient through feedback weights to the input."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.layer, ctx.shape, ctx.dtype = layer, x.shape, x.dtype
        ctx.mark_dirty(out)  # so that later modules may change it in place
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,), (weights,), layer = gradients, ctx.saved_tensors, ctx.layer
        weights = weights.to(gradient.dtype)
        if weights.dim() == 2:
            back = gradient @ weights
        else:
            geometry: Any = layer.stride, padding_of(layer), layer.dilation, layer.groups
            back = conv2d_input(ctx.shape, weights, gradient, *geometry)
        return gradient, back.to(ctx.dtype), None, None
