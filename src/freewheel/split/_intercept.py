"""Calls of submodules and of autograd functions, intercepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.autograd import Function


@dataclass(frozen=True)
class Applied:
    """An autograd.Function as a function in a graph."""

    kind: type[Function]

    @property
    def __name__(self) -> str:
        return self.kind.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply it."""
        return self.kind.apply(*args, **kwargs)


@contextmanager
def intercepted(on_module: Callable[..., Any], on_function: Callable[..., Any]) -> Iterator[None]:
    """A context in which these are called instead of submodules and autograd functions.

    Args:
        on_module: A function of the call to make, the module and its arguments.
        on_function: A function of the call to make, the class and its arguments.
    """
    call, apply = nn.Module.__call__, vars(Function)["apply"]

    def calling(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return on_module(call, module, args, kwargs)

    def applying(kind: type[Function], *args: Any, **kwargs: Any) -> Any:
        return on_function(apply.__get__(None, kind), kind, args, kwargs)

    nn.Module.__call__, Function.apply = calling, classmethod(applying)  # pyright: ignore
    try:
        yield
    finally:
        nn.Module.__call__, Function.apply = call, apply
