"""Clocks that measure the parts of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch
from torch import fx

from freewheel._cuda_graphs import capturing

STEPS = 9
BUDGET_SECONDS = 0.5
Span = tuple[fx.Node, Any, Any]  # a unit, and two readings of the clock
# A training step that reads a clock between its parts; on a GPU, it draws its own random numbers from the generator.
Step = Callable[[Callable[[], Any], "torch.Generator | None"], list[Span]]
Seconds = dict[fx.Node, float]


def measured(step: Step, devices: set[torch.device]) -> list[Seconds]:
    """Return the seconds of each unit in several steps, after a warm-up.

    On a GPU the step is replayed as a CUDA graph, if it can be: the time that Python takes to launch small kernels
    would hide that of the kernels.
    """
    for device in devices:  # torch warns if the first backward of a GPU begins with a product of matrices
        torch.ones((), device=device, requires_grad=True).exp().backward()
    if len(devices) == 1:
        with suppress(RuntimeError):
            return _replayed(step, next(iter(devices)))
    steps = list(_repeated(step, devices))
    return steps[len(steps) // 4 :]


def _repeated(step: Step, devices: set[torch.device]) -> Iterator[Seconds]:
    def clock() -> float:
        for device in devices:
            torch.cuda.synchronize(device)
        return perf_counter()

    start = clock()
    for done in range(1, STEPS + 1):
        yield _summed((unit, over - begun) for unit, begun, over in step(clock, None))
        if (clock() - start) * (done + 1) / done > BUDGET_SECONDS:
            return  # another step would exceed the budget


def _replayed(step: Step, device: torch.device) -> list[Seconds]:
    def clock() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record()
        return event

    graph, stream, generator = torch.cuda.CUDAGraph(), torch.cuda.Stream(device), torch.Generator(device)
    graph.register_generator_state(generator)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step(lambda: None, generator)
        with capturing(graph, torch.cuda.graph_pool_handle()):
            spans = step(clock, generator)
        steps: list[Seconds] = []
        for _ in range(STEPS):
            graph.replay()
            torch.cuda.synchronize(device)
            steps.append(_summed((unit, begun.elapsed_time(over) / 1e3) for unit, begun, over in spans))
    torch.cuda.current_stream(device).wait_stream(stream)
    return steps[1:]


def _summed(parts: Any) -> Seconds:
    seconds: Seconds = {}
    for unit, each in parts:
        seconds[unit] = seconds.get(unit, 0.0) + each
    return seconds
