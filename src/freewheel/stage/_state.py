"""The tensors of a module and the step size of an optimizer: read, put back, and changed for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name, those that a state_dict leaves out included."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def load_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies values into a module's parameters and buffers."""
    with torch.no_grad():
        for name, tensor in tensors_of(module).items():
            tensor.copy_(tensors[name])


def load_buffers(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies values into a module's buffers alone."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(tensors[name])


@contextmanager
def scaled(optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
    """The optimizer with its step size multiplied, for one step."""
    if scale == 1.0:
        yield
        return
    before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * scale
    try:
        yield
    finally:
        for group, lr in zip(optimizer.param_groups, before):
            group["lr"] = lr


@contextmanager
def scratch_buffers(module: nn.Module, values: Sequence[Tensor] = ()) -> Iterator[None]:
    """Inside, the module's buffers are copies, so that what it does to them is forgotten.

    They start from `values`, in the order of `module.buffers()`, where these are given.
    """
    places = [(m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    start = {id(b): value for b, value in zip(module.buffers(), values)}
    for buffers, name, buffer in places:
        buffers[name] = start.get(id(buffer), buffer).clone()
    try:
        yield
    finally:
        for buffers, name, buffer in places:
            buffers[name] = buffer


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """What is done inside to the module's buffers, in place, is undone."""
    before = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
