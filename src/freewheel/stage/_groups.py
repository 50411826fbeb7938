"""Settings of optimizers, which refuse to be changed by a thread that may not do so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_local = threading.local()


def _seen(name: str) -> Callable[..., Any]:
    """A method of dicts that says what it is about to change."""
    plain = getattr(dict, name)

    def change(self: Group, *args: Any, **kwargs: Any) -> Any:
        if (see := getattr(_local, "see", None)) is not None:
            see(self, args[0] if args and isinstance(args[0], str) else "a setting")
        return plain(self, *args, **kwargs)

    return change


class Group(dict[str, Any]):
    """A parameter group of an optimizer that can be watched.

    Example:
        >>> group = Group(lr=0.1)
        >>> with watched_groups(lambda group, name: print("changes", name)):
        ...     group["lr"] = 0.2
        changes lr
        >>> group
        {'lr': 0.2}
    """

    __setitem__ = _seen("__setitem__")
    __delitem__ = _seen("__delitem__")
    __ior__ = _seen("__ior__")
    update = _seen("update")
    setdefault = _seen("setdefault")
    pop = _seen("pop")
    popitem = _seen("popitem")
    clear = _seen("clear")


@contextmanager
def watched_groups(see: Callable[[Group, str], None]) -> Iterator[None]:
    """A context in which this thread calls a function before it changes a group, with the group and the setting."""
    before = getattr(_local, "see", None)
    _local.see = see
    try:
        yield
    finally:
        _local.see = before


def make_watchable(optimizer: torch.optim.Optimizer) -> None:
    """Let the groups of an optimizer be watched; while no other thread uses them."""
    optimizer.param_groups[:] = [g if isinstance(g, Group) else Group(g) for g in optimizer.param_groups]
