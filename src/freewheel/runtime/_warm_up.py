"""The call of a function before it is captured, which leaves no trace in the stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._functorch import config as compiling
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from freewheel.runtime._fixed import NotCapturedError, fingerprint_of
from freewheel.stage import Stage, tensor_slots

ONLY_ONCE = "a CUDA graph would do only once: make it a buffer and change that in place, or use runtime='threads'"


@contextmanager
def leaving_no_trace(stage: Stage) -> Iterator[None]:
    """Undo what a forward changes inside the context, and reject changes that a graph would not repeat.

    A module may make a tensor where it had none, such as a mask, but not put one in the place of another.
    """
    held = held_by(stage)
    settings, values = fingerprint_of(stage), [t.detach().clone() for t in held]
    # The function is called again: a compiled backward may not reuse the memory of what was saved for it.
    with stage.discards(stage.module), compiling.patch(donated_buffer=False):
        slots = [place for places in tensor_slots(stage.module.modules()) for place in places]
        inside = [holder[key] for holder, key in slots]
        yield
        after = tensor_slots(stage.module.modules())
        now = {(id(holder), key): holder[key] for places in after for holder, key in places}
        replaced = [key for (holder, key), t in zip(slots, inside) if now.get((id(holder), key), t) is not t]
    for tensor, value in zip(held, values):
        if not torch.equal(tensor, value):
            with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
                tensor.copy_(value)
    if replaced:
        raise NotCapturedError(
            f"a module of stages[{stage.index}] replaces its tensor {replaced[0]!r} in forward, which {ONLY_ONCE}"
        )
    if changed := settings.changed(fingerprint_of(stage)):
        raise NotCapturedError(f"{changed} of stages[{stage.index}] changes in forward, which {ONLY_ONCE}")


def held_by(stage: Stage) -> list[Tensor]:
    """Return the tensors that the modules of a stage hold."""
    return [holder[key] for (holder, key), *_ in tensor_slots(stage.module.modules())]
