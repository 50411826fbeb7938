"""Run a model without side effects."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

from freewheel.split._tree import container, map_tensors, tensors


@contextmanager
def undisturbed(model: nn.Module, *, training: bool = True, seed: int = 0) -> Iterator[None]:
    """Put the model in training or evaluation mode, and restore its modes, buffers and attributes on exit.

    Random number generators are seeded inside and restored on exit.

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


class AutocastWatch(AbstractContextManager["AutocastWatch"]):
    """A context that counts the autocast contexts which are entered in it; one that switches it off counts, too.

    Example:
        >>> with AutocastWatch() as watch, torch.autocast("cpu", enabled=False):
        ...     watch.entered
        1
        >>> watch.entered
        0
    """

    def __init__(self) -> None:
        self.entered = 0

    def __enter__(self) -> AutocastWatch:
        self._original = torch.autocast.__enter__, torch.autocast.__exit__
        enter, leave = self._original

        def __enter__(context: torch.autocast) -> Any:  # noqa: N807
            self.entered += 1
            return enter(context)

        def __exit__(context: torch.autocast, *error: Any) -> Any:  # noqa: N807
            self.entered -= 1
            return leave(context, *error)

        torch.autocast.__enter__, torch.autocast.__exit__ = __enter__, __exit__  # pyright: ignore
        return self

    def __exit__(self, *error: object) -> None:
        torch.autocast.__enter__, torch.autocast.__exit__ = self._original


def unpacks(example: Any) -> bool:
    """Whether the example holds the arguments of the model rather than being its only one."""
    return container(example) in (tuple, dict)


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for.

    Example:
        >>> arguments(1), arguments((1, 2)), arguments({"x": 1})
        (((1,), {}), ((1, 2), {}), ((), {'x': 1}))
    """
    if not unpacks(example):
        return (example,), {}
    return ((), example) if container(example) is dict else (example, {})


def call(model: nn.Module, example: Any) -> Any:
    """Call the model on copies of the example's tensors, because a model may write to its input."""
    args, kwargs = arguments(map_tensors(lambda t: t.detach().clone(), example))
    return model(*args, **kwargs)


def raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised the error, for example a timeout set by ``signal.alarm``.

    Python calls ``handler(signal, frame)`` with the frame that it interrupts, so that frame is the caller as well.
    """
    for (caller, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        names, rest, _, values = inspect.getargvalues(frame)
        given = [*(values.get(name) for name in names), *(values.get(rest, ()) if rest else ())]
        if any(value is caller for value in given[1:]):
            return True
    return False


def _cuda_devices(model: nn.Module) -> list[int]:
    owned = tensors([list(model.parameters()), list(model.buffers())])
    return sorted({t.device.index or 0 for t in owned if t.device.type == "cuda"})
