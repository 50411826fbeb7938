"""Record a model in one mode, as often as it takes to find out what must be kept whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from freewheel.split._recorder import Recorder, UnrecordableError
from freewheel.split._tracer import explain
from freewheel.split._tree import map_tensors
from freewheel.split._undisturbed import raised_by_signal, undisturbed


def record_calls(
    model: nn.Module, example: Any, whole: dict[str, str], *, training: bool
) -> tuple[fx.Graph, dict[str, Any]]:
    """Record the model in one mode; return the graph and the constants it refers to.

    The submodules in `whole` are recorded as single calls. Those that cannot be recorded are added to it, with the
    reason.
    """
    while True:
        recorder = Recorder(model, whole)
        try:
            with undisturbed(model, training=training, seed=int(training)):
                graph = recorder.record(map_tensors(lambda t: t.detach().clone(), example))
        except Exception as error:
            if raised_by_signal(error) or not isinstance(error, UnrecordableError):
                raise
            raise ValueError(explain(model, error)) from error
        if not recorder.failed:
            return graph, recorder.constants
        whole |= recorder.failed


@contextmanager
def recordable(model: nn.Module, *, compiling: bool) -> Iterator[None]:
    """A context in which a model of transformers keeps no cache and, if `compiling`, looks at no values."""
    configs = [vars(module).get("config") for module in model.modules()]
    caching: dict[int, Any] = {id(c): c for c in configs if getattr(c, "use_cache", None) is True}
    before = torch.compiler._is_compiling_flag
    for config in caching.values():
        config.use_cache = False
    torch.compiler._is_compiling_flag = compiling
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
        for config in caching.values():
            config.use_cache = True
