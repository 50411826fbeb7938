"""What is compiled of a stage, by the form of its arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from freewheel.stage._trees import Shape, map_tensors, unflatten

_TENSOR = object()


class CompiledForm(NamedTuple):
    """What is compiled for one form of arguments."""

    run: Callable[..., Sequence[Tensor]]
    template: list[Any]  # of its result
    shape: Shape

    def result(self, tensors: Sequence[Tensor]) -> Any:
        """Return the tree of these tensors."""
        return unflatten(filled(self.template, tensors), self.shape)


class CompiledCode:
    """What is compiled of a stage, for all copies of it in a process: replicas, and those that are checked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ready: dict[Any, CompiledForm] = {}
        self._settings: dict[Any, int] = {}

    def number(self, settings: Any) -> int:
        """Return the number of a module's settings."""
        with self.lock:
            return self._settings.setdefault(settings, len(self._settings))

    def get(self, key: Any, compile: Callable[[], CompiledForm]) -> CompiledForm:
        """Return what is compiled for a form of arguments."""
        ready = self._ready.get(key)
        if ready is None:
            with self.lock:
                ready = self._ready[key] = self._ready.get(key) or compile()
        return ready


def template_of(leaves: Sequence[Any]) -> list[Any]:
    """Replace the tensors among leaves by a placeholder."""
    return map_tensors(lambda t: _TENSOR, leaves)


def filled(template: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Replace the placeholders of a template by tensors."""
    left = iter(tensors)
    return [next(left) if leaf is _TENSOR else leaf for leaf in template]
