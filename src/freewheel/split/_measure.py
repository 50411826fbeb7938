"""How long each unit takes, forward and backward."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from freewheel.split._line import Line
from freewheel.split._tree import map_tensors, tensors
from freewheel.split._undisturbed import undisturbed

WARM_UP = 2
REPEATS = 7


def measure(line: Line, example: Any) -> list[float]:
    """Seconds of forward and backward of each unit on the example, in training mode.

    The line is run from end to end, twice to warm up and then seven times, each unit by itself on what
    the units before it gave; for each unit the median counts, so a moment when the machine was busy with
    something else is left out. Backward starts from ones and goes to the parameters and to those inputs
    that need a gradient. The model is left as it was.
    """
    with undisturbed(line.model), torch.enable_grad():
        passes = [_once(line, example) for _ in range(WARM_UP + REPEATS)]
    return [median(seconds) for seconds in zip(*passes[WARM_UP:])]


def _once(line: Line, example: Any) -> list[float]:
    """The seconds of each unit in one pass."""
    seconds: dict[fx.Node, float] = {}
    values: dict[fx.Node, Any] = {}
    waiting = {node: len(node.users) for node in line.traced.graph.nodes}
    units = set(line.units)
    for node in line.traced.graph.nodes:
        if node.op == "output":
            break
        if node.op == "placeholder":
            values[node] = map_tensors(lambda t: t.detach().clone(), example)
        elif node in units:
            seconds[node], values[node] = _time(line, node, values)
        else:
            values[node] = line.traced.run(node, values.__getitem__)
        for source in node.all_input_nodes:
            waiting[source] -= 1
            if not waiting[source]:
                del values[source]
    return [seconds[unit] for unit in line.units]


def _time(line: Line, node: fx.Node, values: dict[fx.Node, Any]) -> tuple[float, Any]:
    """The time of one unit, and its value cut loose from the units before it."""
    leaves = {n: map_tensors(_leaf, values[n]) for n in node.all_input_nodes}
    inputs = {n: map_tensors(_writable, leaf) for n, leaf in leaves.items()}
    start = _now(node, values)
    result = line.traced.run(node, inputs.__getitem__)
    spent = _now(node, values) - start
    ends = [t for t in tensors(result) if t.grad_fn is not None]
    sources = [t for t in [*_parameters(line, node), *tensors(list(leaves.values()))] if t.requires_grad]
    sources = list({id(t): t for t in sources}.values())
    if ends and sources:
        ones = [torch.ones_like(t) for t in ends]
        start = _now(node, values)
        torch.autograd.grad(ends, sources, ones, allow_unused=True)
        spent += _now(node, values) - start
    return spent, map_tensors(_leaf, result)


def _parameters(line: Line, node: fx.Node) -> list[Tensor]:
    module = line.traced.fetch(str(node.target)) if node.op == "call_module" else None
    return [p for p in module.parameters() if p.requires_grad] if isinstance(module, nn.Module) else []


def _leaf(tensor: Tensor) -> Tensor:
    """The same numbers with no history; parameters stay themselves."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _writable(tensor: Tensor) -> Tensor:
    """A copy that a unit may change in place; parameters stay themselves."""
    return tensor if isinstance(tensor, nn.Parameter) else tensor.clone()


def _now(node: fx.Node, values: dict[fx.Node, Any]) -> float:
    """The time once the device is done."""
    for tensor in tensors([values[n] for n in node.all_input_nodes]):
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)
            break
    return perf_counter()
