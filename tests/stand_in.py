"""CUDA graphs, streams and events for machines without a GPU.

A graph calls its function again, with the tensors and the settings that were there when it was captured, and writes its
results to the places of the first ones. Everything happens at once, in the order in which it is launched; clocks of the
streams tell what a GPU might do in another order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from freewheel.credit._graph import Graph
from freewheel.runtime import _capture, _fixed, _graph
from freewheel.runtime._drawn import Sources
from freewheel.runtime._fixed import StepSizes
from freewheel.stage import Launcher
from freewheel.tangents import Passed

Clock = dict[int, int]  # by stream, how much of its work is known to be done


class Stream:
    """A stream: what it has launched, and what is done before its next kernel begins."""

    all: list[Stream]
    current: Stream

    def __init__(self, device=None):
        self.device, self.number, self.clock = torch.device("cpu"), len(Stream.all), Clock()
        Stream.all.append(self)

    def wait_event(self, event):
        self.clock = merged(self.clock, event.clock)

    def wait_stream(self, stream):
        self.clock = merged(self.clock, stream.clock)

    def synchronize(self):
        for stream in Stream.all:
            stream.wait_stream(self)


def merged(a: Clock, b: Clock) -> Clock:
    return {number: max(a.get(number, 0), b.get(number, 0)) for number in a | b}


def synchronize(device=None):
    for stream in list(Stream.all):
        stream.synchronize()


class Event:
    def __init__(self, enable_timing=False):
        self.clock, self.time = Clock(), 0.0

    def record(self, stream=None):
        self.clock, self.time = dict((stream or Stream.current).clock), time.perf_counter()

    def elapsed_time(self, other):
        return 1e3 * (other.time - self.time)

    def query(self):
        return True

    def synchronize(self):
        pass


class CUDAGraph:
    def __init__(self):
        self.replays, self.first, self.again = 0, lambda: None, lambda: None

    def register_generator_state(self, generator):
        pass

    def replay(self):
        self.replays += 1
        (self.first if self.replays == 1 else self.again)()


class Races(TorchDispatchMode):
    """Finds operations of two streams on the same memory that no event orders."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []
        self._memory: dict[int, tuple[Any, Clock, Clock]] = {}  # the memory, when it was written last, and read since

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        written = []
        for argument, value in [*zip(function._schema.arguments, args), *self._named(function, kwargs)]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += tree_leaves(value)
        name = str(function)
        if any(tag is torch.Tag.inplace_view for tag in function.tags) or name.startswith("aten.detach"):
            return result
        stream = Stream.current
        stream.clock[stream.number] = now = stream.clock.get(stream.number, 0) + 1
        if not function.is_view:
            for leaf in tree_leaves((args, kwargs)):
                self._note(name, leaf, now, write=any(leaf is each for each in written))
            for leaf in tree_leaves(result):
                self._note(name, leaf, now, write=True)
        return result

    def _named(self, function, kwargs):
        return [(each, kwargs[each.name]) for each in function._schema.arguments if each.name in kwargs]

    def _note(self, name: str, leaf: Any, now: int, *, write: bool) -> None:
        if not isinstance(leaf, Tensor) or leaf.is_meta or leaf._is_zerotensor() or not leaf.numel():
            return
        storage, stream = leaf.untyped_storage(), Stream.current
        _, wrote, read = self._memory.setdefault(storage.data_ptr(), (storage, {}, {}))
        for number, reached in [*wrote.items(), *(read.items() if write else ())]:
            if stream.clock.get(number, 0) < reached:
                kind = "writes" if write else "reads"
                self.found.append(f"{name} {kind} {tuple(leaf.shape)} in stream {stream.number}, used in {number}")
        if write:
            wrote.clear(), read.clear()
        (wrote if write else read)[stream.number] = now


class Held:
    """The tensors and settings of a stage, which a graph goes on with."""

    def __init__(self, stage):
        self._places = [(holder, key, holder[key]) for holder, key in places(stage)]
        self._made: list[Any] = []  # what the first call has put in their place

    def made(self) -> None:
        """Note what the first call has done."""
        self._made = [holder.get(key) for holder, key, _ in self._places]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put them in place for another call."""
        now = [holder.get(key) for holder, key, _ in self._places]
        for holder, key, value in self._places:
            holder[key] = value
        yield
        for (holder, key, value), made, before in zip(self._places, self._made, now):
            if isinstance(value, Tensor) and holder.get(key) is not value:
                write(made, holder[key])
            holder[key] = before


def places(stage) -> Iterator[tuple[Any, Any]]:
    """The dicts that hold the tensors and settings of a stage, and the keys."""
    dicts = [d for m in stage.module.modules() for d in (vars(m), m._parameters, m._buffers)]
    if stage.optimizer is not None:
        dicts += [*stage.optimizer.state.values(), *stage.optimizer.param_groups]
    for each in dicts:
        for key, value in each.items():
            if (isinstance(value, Tensor) and value.grad_fn is None) or type(value) in (int, float, bool, str, tuple):
                yield each, key


def write(place: Any, value: Any) -> None:
    """Copy a result to the place of an earlier one."""
    if isinstance(place, Tensor):
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


def _called(self, *arguments, **options):
    assert Stream.current is self.stream, "a stage computes on its own stream"
    return _called_before(self, *arguments, **options)


def _record(self, kind, place, call):
    graph, stage = CUDAGraph(), self._stage
    draws = list(self._drawn.get(kind, ()))
    sources = Sources(draws, graph, stage.device, self._slots)
    made = list(sources._left)
    sizes = StepSizes(stage) if kind[0] == "update" else None
    if sizes is not None:
        sizes._sizes = [size.double() for size in sizes._sizes]

    def run():
        sources._left = iter(made)
        self._sources, self._sizes, self.captures = sources, sizes, True
        try:
            sources.begin()
            return call()
        finally:
            self._sources, self._sizes, self.captures = None, None, False

    def again():
        with held.in_place():
            write(result, run())

    sources.seed(stage, self.unit)
    held = Held(stage)
    result = run()
    held.made()
    self.recorded.add(result)
    graph.first, graph.again = sources.begin, again
    return graph, sources, sizes, result


@contextmanager
def _sized(self, optimizer, scale):
    """Let an optimizer step by the numbers on the device; one of a CPU does not take tensors for all its forms."""
    sizes = self._sizes
    if sizes is None:
        with Launcher.sized(self, optimizer, scale):
            yield
        return
    if sizes._scale != scale or any(value != value for value in sizes._values):
        sizes._scale = scale
        sizes.fill()
    before = [group["lr"] for group in optimizer.param_groups]
    for group, size in zip(optimizer.param_groups, sizes._sizes):
        group["lr"] = size.item()
    try:
        yield
    finally:
        for group, lr in zip(optimizer.param_groups, before):
            group["lr"] = lr


_capture_before = _capture.CapturingLauncher._capture
_called_before = _capture.CapturingLauncher.__call__


@pytest.fixture
def stand_in(monkeypatch):
    """The runtime `graph` on a CPU."""
    monkeypatch.setattr(Stream, "all", [], raising=False)
    monkeypatch.setattr(Stream, "current", Stream(), raising=False)
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "set_stream": lambda stream: setattr(Stream, "current", stream),
        "current_stream": lambda device=None: Stream.current,
        "synchronize": synchronize,
        "device": lambda device: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(_graph.Graphs, "check", lambda self, config, blueprints: None)
    monkeypatch.setattr(_capture.CapturingLauncher, "_capture", _capture_function)
    monkeypatch.setattr(_capture.CapturingLauncher, "_record", _record)
    monkeypatch.setattr(_capture.CapturingLauncher, "__call__", _called)
    monkeypatch.setattr(_capture.CapturingLauncher, "sized", _sized)
    monkeypatch.setattr(_fixed, "has_form_of_device", lambda optimizer: True)
