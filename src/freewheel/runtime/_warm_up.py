"""The call of a function before it is captured, which leaves no trace in the stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._functorch import config as compiling
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from freewheel._plain import is_plain
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
    attributes = [(vars(module), dict(vars(module))) for module in stage.module.modules()]
    # The function is called again: a compiled backward may not reuse the memory of what was saved for it.
    with stage.discards(), compiling.patch(donated_buffer=False):
        slots = [place for places in tensor_slots(stage.module.modules()) for place in places]
        inside = [holder[key] for holder, key in slots]
        yield
        after = tensor_slots(stage.module.modules())
        now = {(id(holder), key): holder[key] for places in after for holder, key in places}
        replaced = [(place, t) for place, t in zip(slots, inside) if now.get((id(place[0]), place[1]), t) is not t]
        for (holder, key), t in replaced:
            holder[key] = t
    for tensor, value in zip(held, values):
        if not torch.equal(tensor, value):
            with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
                tensor.copy_(value)
    changed = settings.changed(fingerprint_of(stage))
    for own, old in attributes:
        for name in [name for name, value in own.items() if is_plain(value) and name not in old]:
            del own[name]
        own.update((name, value) for name, value in old.items() if is_plain(value))
    if replaced:
        changed = f"the tensor {replaced[0][0][1]!r} of a module"
    if changed:
        undone = not settings.changed(fingerprint_of(stage))
        kind = NotCapturedError if undone else ValueError  # the call cannot be made again
        raise kind(f"{changed} of stages[{stage.index}] changes in forward, which {ONLY_ONCE}")


def held_by(stage: Stage) -> list[Tensor]:
    """Return the tensors that the modules of a stage hold."""
    return [holder[key] for (holder, key), *_ in tensor_slots(stage.module.modules())]
