"""Measure the time of each unit within whole training steps: forward and backward, or by dual numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, fx

from freewheel.split._clock import Span, Step, measured
from freewheel.split._line import Line
from freewheel.split._tree import map_tensors, tensors
from freewheel.split._undisturbed import undisturbed
from freewheel.stage import Launcher
from freewheel.tangents import (
    Directions,
    DualMode,
    PendingBatch,
    TangentOptions,
    TangentSource,
    enter_level,
    explained,
    leave_level,
)


def time_backpropagation(line: Line, example: Any) -> list[float]:
    """Seconds of forward and backward of each unit on the example, in training mode.

    The model is run forward and backward as in training, nine times, or fewer if that takes more than half a second.
    The first quarter of the steps is warm-up; of the others the median counts for each unit, so that short
    interruptions do not. A unit's backward lasts from the moment its output has its gradient until the next unit's has:

        forward   | conv1 | bn1 | relu |
        backward                        | relu | bn1 | conv1 |
                                        ^ gradient of relu's output

    Measured in isolation, units would find their inputs in the cache and their memory fresh, and layers with large
    activations would look slower or faster than they are. The model is left unchanged.
    """
    return _median_seconds(line, lambda clock, _: _training_step(line, example, clock))


def time_forward_gradients(line: Line, example: Any) -> list[float]:
    """The same for a step of forward gradients: the dual pass of each unit, and its update, which draws them again.

    ::

        dual pass | conv1 | bn1 | relu |
        updates                         | conv1 | bn1 |
    """
    launcher = _OneGenerator()
    directions = _directions(line, launcher)  # has a generator, which cannot be made while a graph is captured

    def step(clock: Callable[[], Any], generator: torch.Generator | None) -> list[Span]:
        launcher.generator = generator
        return _dual_step(line, example, clock, directions)

    enter_level()
    try:
        return _median_seconds(line, step)
    except (NotImplementedError, RuntimeError) as error:
        reason = explained(error)
        raise reason from (None if reason is error else error)
    finally:
        leave_level()


def _median_seconds(line: Line, step: Step) -> list[float]:
    devices = {t.device for t in (*line.model.parameters(), *line.model.buffers()) if t.device.type == "cuda"}
    with undisturbed(line.model), torch.enable_grad():
        steps = measured(step, devices)
    return [median(seconds.get(unit, 0.0) for seconds in steps) for unit in line.units]


def _walk(
    line: Line, example: Any, clock: Callable[[], Any], after: Callable[[fx.Node, Any], None]
) -> tuple[list[Span], list[Tensor]]:
    """Run the model and call `after` with every unit and its value; return the span of each, and the output."""
    spans: list[Span] = []
    units = set(line.units)
    values: dict[fx.Node, Any] = {}
    ends: list[Tensor] = []
    uses_left = {node: len(node.users) for node in line.traced.graph.nodes}
    for node in line.traced.graph.nodes:
        if node.op == "output":
            ends = [t for n in node.all_input_nodes for t in tensors(values[n])]
            break
        if node.op == "placeholder":
            values[node] = map_tensors(lambda t: t.detach().clone(), example)
            continue
        start = clock()
        values[node] = line.traced.run(node, values.__getitem__)
        if node in units:
            spans.append((node, start, clock()))
            after(node, values[node])
        for source in node.all_input_nodes:
            uses_left[source] -= 1
            if not uses_left[source] and not any(user.op == "output" for user in source.users):
                del values[source]
    return spans, ends


def _training_step(line: Line, example: Any, clock: Callable[[], Any]) -> list[Span]:
    """Spans of each unit in one step of backpropagation."""
    marks: list[tuple[Any, fx.Node]] = []  # when each unit's output got its gradient

    def watch(unit: fx.Node, value: Any) -> None:
        for tensor in tensors(value):
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda gradient: marks.append((clock(), unit)))

    spans, ends = _walk(line, example, clock, watch)
    ends = [t for t in ends if t.grad_fn is not None]
    sources = [p for p in line.model.parameters() if p.requires_grad]
    if ends and sources:
        torch.autograd.grad(ends, sources, [torch.ones_like(t) for t in ends], allow_unused=True)
        marks.append((clock(), line.units[0]))
    return spans + [(unit, begun, over) for (begun, unit), (over, _) in pairwise(marks)]


class _OneGenerator(Launcher):
    """Draws all from one generator, if there is one, since a CUDA graph cannot seed it."""

    generator: torch.Generator | None = None

    def seeded(self, generator: torch.Generator, key: tuple[int, ...]) -> torch.Generator:
        return super().seeded(generator, key) if self.generator is None else self.generator


def _directions(line: Line, launcher: Launcher) -> Directions:
    """The tangents of the whole model."""
    named = [((name,), p) for name, p in line.model.named_parameters()]
    device = named[0][1].device if named else torch.device("cpu")
    ones = {id(p): 1.0 for _, p in named}
    return Directions(TangentOptions(), (0, 0), named, ones, {}, device, launcher=lambda: launcher)


def _dual_step(line: Line, example: Any, clock: Callable[[], Any], directions: Directions) -> list[Span]:
    """Spans of each unit in one step of forward gradients."""
    weights = directions.parameters
    drawn = PendingBatch(0, tuple(float(p.requires_grad) for p in weights))
    used: dict[int, fx.Node] = {}  # the first unit that used each parameter

    def note(unit: fx.Node, value: Any) -> None:
        for index in drawn.passed.used - used.keys():
            used[index] = unit

    with DualMode(TangentSource(directions, drawn, (0, 0)), {}):
        spans, _ = _walk(line, example, clock, note)
    derivatives = {0: torch.ones(1, device=weights[0].device if weights else None)}
    with torch.no_grad():
        for index, unit in sorted(used.items()):
            start, gradient = clock(), directions.gradient(drawn, derivatives, index)
            assert gradient is not None
            torch.add(weights[index].detach(), gradient)
            spans.append((unit, start, clock()))
    return spans
