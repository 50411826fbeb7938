"""How long each unit takes, forward and backward, as part of a whole training step."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx

from freewheel._malloc import keep_freed_memory
from freewheel.split._line import Line
from freewheel.split._tree import map_tensors, tensors
from freewheel.split._undisturbed import undisturbed

WARM_UP = 2
REPEATS = 7


def measure(line: Line, example: Any) -> list[float]:
    """Seconds of forward and backward of each unit on the example, in training mode.

    The model is run forward and backward as in training, twice to warm up and then seven times; for each unit the
    median counts, so that a moment when the machine was busy with something else is left out. A unit's backward
    lasts from the moment its output has its gradient until the next unit's has:

        forward   | conv1 | bn1 | relu |
        backward                        | relu | bn1 | conv1 |
                                        ^ gradient of relu's output

    Measured by themselves, units would find their inputs in the cache and their memory fresh, and layers with large
    activations would look dearer or cheaper than they are. The model is left as it was.
    """
    keep_freed_memory()  # as the runtimes do
    with undisturbed(line.model), torch.enable_grad():
        passes = [_once(line, example) for _ in range(WARM_UP + REPEATS)]
    return [median(seconds) for seconds in zip(*passes[WARM_UP:])]


def _once(line: Line, example: Any) -> list[float]:
    """The seconds of each unit in one step."""
    seconds = dict.fromkeys(line.units, 0.0)
    marks: list[tuple[float, fx.Node]] = []  # when each unit's output got its gradient
    values: dict[fx.Node, Any] = {}
    ends: list[Tensor] = []
    waiting = {node: len(node.users) for node in line.traced.graph.nodes}
    devices = {t.device for t in tensors(example)} | {p.device for p in line.model.parameters()}

    def now() -> float:
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return perf_counter()

    def mark(unit: fx.Node) -> None:
        marks.append((now(), unit))

    for node in line.traced.graph.nodes:
        if node.op == "output":
            ends = [t for n in node.all_input_nodes for t in tensors(values[n]) if t.grad_fn is not None]
            break
        if node.op == "placeholder":
            values[node] = map_tensors(lambda t: t.detach().clone(), example)
            continue
        start = now()
        values[node] = line.traced.run(node, values.__getitem__)
        if node in seconds:
            seconds[node] += now() - start
            for tensor in tensors(values[node]):
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda gradient, unit=node: mark(unit))
        for source in node.all_input_nodes:
            waiting[source] -= 1
            if not waiting[source] and not any(user.op == "output" for user in source.users):
                del values[source]
    sources = [p for p in line.model.parameters() if p.requires_grad]
    if ends and sources:
        torch.autograd.grad(ends, sources, [torch.ones_like(t) for t in ends], allow_unused=True)
        marks.append((now(), line.units[0]))
    for (begun, unit), (over, _) in pairwise(marks):
        seconds[unit] += over - begun
    return [seconds[unit] for unit in line.units]
