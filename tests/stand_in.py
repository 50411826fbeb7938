"""CUDA graphs, streams and events for machines without a GPU: a graph calls its function again.

Results are copied to the places of the first ones, as a graph writes them there. Everything happens in the order in
which it is launched, so this shows nothing about streams and events.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from freewheel.credit._graph import Graph
from freewheel.runtime import _capture, _graph
from freewheel.runtime._drawn import Sources
from freewheel.runtime._fixed import StepSizes
from freewheel.stage import Launcher, Stash
from freewheel.tangents import Passed


class Stream:
    def __init__(self, device=None):
        self.device = torch.device("cpu")

    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass


class Event:
    def record(self, stream=None):
        pass


class CUDAGraph:
    def __init__(self):
        self.replays, self.first, self.again = 0, lambda: None, lambda: None

    def register_generator_state(self, generator):
        pass

    def replay(self):
        self.replays += 1
        (self.first if self.replays == 1 else self.again)()


def write(place: Any, value: Any) -> None:
    """Copy a result to the place of an earlier one."""
    if isinstance(place, torch.Tensor):
        if place is not value:
            with torch.no_grad():
                place.detach().copy_(value)
    elif isinstance(place, Graph):
        for name in ("inputs", "outputs", "weights"):
            setattr(place, name, getattr(value, name))
    elif isinstance(place, Passed):
        write(place.tangents, value.tangents)
    elif isinstance(place, (list, tuple)):
        for a, b in zip(place, value, strict=True):
            write(a, b)
    elif isinstance(place, dict):
        for key in place:
            write(place[key], value[key])


def _capture_function(self, name, unit, *rest):
    self.unit = unit
    return _capture_before(self, name, unit, *rest)


def _record(self, kind, place, call):
    graph, stage = CUDAGraph(), self._stage
    draws = list(self._drawn.get(kind, ()))
    sources = Sources(draws, graph, stage.device, self._slots)
    made = list(sources._left)
    sizes = StepSizes(stage) if kind[0] == "update" else None

    def run():
        sources._left = iter(made)
        self._sources, self._sizes, self.captures = sources, sizes, True
        try:
            sources.begin()
            return call()
        finally:
            self._sources, self._sizes, self.captures = None, None, False

    sources.seed(stage, self.unit)
    if sizes is not None:
        sizes.fill()
    result = run()
    self.recorded.add(result)
    graph.first, graph.again = sources.begin, lambda: write(result, run())
    return graph, sources, sizes, result


_capture_before = _capture.CapturingLauncher._capture


@pytest.fixture
def stand_in(monkeypatch):
    """The runtime `graph` on a CPU."""
    current = Stream()
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "set_stream": lambda stream: None,
        "current_stream": lambda device=None: current,
        "synchronize": lambda device=None: None,
        "device": lambda device: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(_graph.Graphs, "check", lambda self, config, blueprints: None)
    monkeypatch.setattr(_capture.CapturingLauncher, "_capture", _capture_function)
    monkeypatch.setattr(_capture.CapturingLauncher, "_record", _record)
    monkeypatch.setattr(_capture.CapturingLauncher, "sized", Launcher.sized)  # a step reads its size as it is called
    monkeypatch.setattr(_capture, "may_capture_updates", lambda stage: stage.corrections.steady)
    monkeypatch.setattr(Stash, "backward", lambda self, version: nullcontext())  # of repeated batches it has none
