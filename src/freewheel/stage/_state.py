"""Reading, restoring and temporarily changing a module's tensors and an optimizer's step size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from freewheel.stage._gradients import with_strides
from freewheel.stage._stand_ins import standing_in


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by name, including non-persistent buffers."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def load_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy values into a module's parameters and buffers."""
    with torch.no_grad():
        for name, tensor in tensors_of(module).items():
            tensor.copy_(tensors[name])


def load_buffers(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy values into a module's buffers."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(tensors[name])


@contextmanager
def scaled(optimizer: torch.optim.Optimizer, scale: float) -> Iterator[None]:
    """Scale the step size of an optimizer inside the context."""
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


def step_scheduler(
    scheduler: torch.optim.lr_scheduler.LRScheduler | None, value: float | None = None, *, early: bool = False
) -> None:
    """Step a scheduler that waits for a plateau with a value, and any other without one; `early`, before an update."""
    waits = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if scheduler is not None and waits == (value is not None):
        if early:  # torch warns where a scheduler steps before the optimizer has
            scheduler.optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
        scheduler.step(*([value] if waits else []))  # pyright: ignore[reportArgumentType]


@contextmanager
def scratch_buffers(module: nn.Module, values: Sequence[Tensor] = ()) -> Iterator[None]:
    """Replace a module's buffers by copies inside the context, so that changes to them are discarded.

    The copies start from `values`, if given, in the order of `module.buffers()`.
    """
    slots = [(m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    start = {id(b): value for b, value in zip(module.buffers(), values)}
    copies = [start.get(id(buffer), buffer).clone() for _, _, buffer in slots]
    with standing_in(copies, [buffer for _, _, buffer in slots]):
        for (buffers, name, _), copy in zip(slots, copies):
            buffers[name] = copy
        try:
            yield
        finally:
            for buffers, name, buffer in slots:
                buffers[name] = buffer


@contextmanager
def restored_buffers(module: nn.Module) -> Iterator[None]:
    """Undo changes to a module's buffers at the end of the context; inside it, they are the module's own."""
    slots = [(m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    before = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        for buffers, name, buffer in slots:
            buffers[name] = buffer
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def align_state(optimizer: torch.optim.Optimizer) -> None:
    """Give what an optimizer holds for each element of a parameter the parameter's strides, as fused ones need it.

    A checkpoint may come from a network in another memory format.

    Example:
        >>> weight = nn.Parameter(torch.zeros(2, 3))
        >>> sgd = torch.optim.SGD([weight], momentum=0.9)
        >>> sgd.state[weight]["momentum_buffer"] = torch.ones(3, 2).t()
        >>> align_state(sgd)
        >>> sgd.state[weight]["momentum_buffer"].stride()
        (3, 1)
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.layout is weight.layout:
                state[name] = with_strides(value, weight)


def has_state(optimizer: torch.optim.Optimizer, weights: Collection[Tensor]) -> bool:
    """Whether an optimizer has made the state of all these weights, as its first step does."""
    known = {id(weight) for weight in weights}
    for group in optimizer.param_groups:
        stateless = type(optimizer) is torch.optim.SGD and not group["momentum"]
        for p in group["params"]:
            state = optimizer.state.get(p)
            if id(p) in known and not stateless and (not state or state.get("momentum_buffer", p) is None):
                return False
    return True
