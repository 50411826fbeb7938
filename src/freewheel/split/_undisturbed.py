"""Run a model and leave no trace of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from freewheel.split._tree import map_tensors, tensors


@contextmanager
def undisturbed(model: nn.Module, *, training: bool = True, seed: int = 0) -> Iterator[None]:
    """Put the model in one mode; on leaving, its modes, buffers and attributes are as before.

    The random number generators are seeded inside and go on afterwards as if nothing had happened.

    Example:
        >>> norm = nn.BatchNorm1d(2).eval()
        >>> with undisturbed(norm):
        ...     _ = norm(torch.randn(8, 2))
        >>> norm.training, norm.running_mean.tolist()
        (False, [0.0, 0.0])
    """
    modules = list(model.modules())
    modes = [m.training for m in modules]
    attributes = [dict(vars(m)) for m in modules]
    buffers = [(m, name, b, b.detach().clone()) for m in modules for name, b in m.named_buffers(recurse=False)]
    devices = _cuda_devices(model)
    with torch.random.fork_rng(devices=devices):
        for generator in [torch.default_generator, *(torch.cuda.default_generators[d] for d in devices)]:
            generator.manual_seed(seed)
        try:
            model.train(training)
            yield
        finally:
            for module, mode, saved in zip(modules, modes, attributes):
                for name in set(vars(module)) - set(saved):
                    del vars(module)[name]
                vars(module).update(saved)
                module.training = mode
            with torch.no_grad():
                for module, name, buffer, saved in buffers:
                    setattr(module, name, buffer.copy_(saved))


def call(model: nn.Module, example: Any) -> Any:
    """Call the model on an example: a tuple holds its arguments, a dict its keywords.

    The tensors are copies, for a model may write into what it is given.
    """
    example = map_tensors(lambda t: t.detach().clone(), example)
    if isinstance(example, tuple):
        return model(*example)
    return model(**example) if isinstance(example, dict) else model(example)


def _cuda_devices(model: nn.Module) -> list[int]:
    owned = tensors([list(model.parameters()), list(model.buffers())])
    return sorted({t.device.index or 0 for t in owned if t.device.type == "cuda"})
