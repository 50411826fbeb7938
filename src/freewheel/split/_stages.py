"""Make the stage modules: each holds the model's own submodules under their own names."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx, nn

from freewheel.split._line import Item, Line


class GraphStage(nn.Module):
    """A stage of a traced model, with one message as input and one as output.

    A message is the tensor that crosses the cut, or a tuple if there are several.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self._fw_graph = graph
        self._fw_run = _compile(graph)

    def forward(self, message: Any) -> Any:
        """Run this stage's calls of the model's forward."""
        return self._fw_run(self, message)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_fw_run"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fw_run = _compile(self._fw_graph)


def _compile(graph: fx.Graph) -> Any:
    """The graph as a Python function of the stage and its message."""
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<freewheel stage>", "exec"), names)
    return names["forward"]


def make_stages(line: Line, spans: list[tuple[int, int]]) -> list[nn.Module]:
    """One module for each span of units."""
    plain = line.traced.sequential and line.units[0].all_input_nodes[0].op == "placeholder"
    if plain and all(line.structures[line.units[start - 1]].is_message() for start, _ in spans[1:]):
        return [_sequential(line, start, end) for start, end in spans]
    return [_graph_stage(line, start, end) for start, end in spans]


def _sequential(line: Line, start: int, end: int) -> nn.Module:
    stage = nn.Sequential()
    stage.training = line.model.training
    for unit in line.units[start:end]:
        _install(stage, line, str(unit.target), nn.Sequential)
    return stage


def _graph_stage(line: Line, start: int, end: int) -> nn.Module:
    stage = GraphStage(_subgraph(line, start, end))
    stage.training = line.model.training
    targets = {str(n.target) for n in stage._fw_graph.nodes if n.op in ("call_module", "get_attr")}
    for target in sorted(targets, key=lambda t: (t.count("."), t)):
        _install(stage, line, target, nn.Module)
    return stage


def _install(stage: nn.Module, line: Line, target: str, container: type[nn.Module]) -> None:
    """Give the stage what the model has under this name, inside of new containers."""
    *prefix, name = target.split(".")
    place, path = stage, ""
    for step in prefix:
        path = f"{path}.{step}" if path else step
        original = line.traced.fetch(path)
        if step not in place._modules:
            place.add_module(step, container())
            place.get_submodule(step).training = original.training
        place = place.get_submodule(step)
        if place is original:
            return  # the stage already has the whole submodule
    value = line.traced.fetch(target)
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        place.register_buffer(name, value, persistent=target in line.traced.saved)
    elif name != "training":
        setattr(place, name, value)  # registers parameters and submodules


def _subgraph(line: Line, start: int, end: int) -> fx.Graph:
    """The nodes of the units from start up to end, between the incoming and the outgoing message."""
    graph = fx.Graph()
    known: dict[fx.Node, Any] = _receive(line, graph, line.messages[start]) if start else {}

    def copy(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source not in known:
                copy(source)  # free: this stage computes it for itself
        known[node] = graph.node_copy(node, known.__getitem__)
        known[node].meta, known[node].type = {}, None

    for node, place in line.position.items():
        if start <= place < end and node not in known:
            copy(node)
    if end < len(line.units):
        graph.output(_send(graph, line.messages[end], known))
    else:
        copy(line.traced.graph.output_node())
    return graph


def _receive(line: Line, graph: fx.Graph, message: tuple[Item, ...]) -> dict[fx.Node, Any]:
    """The values of a message, each assembled as it was before the cut."""
    argument = graph.placeholder("message")
    arrived = [argument] if len(message) == 1 else [
        graph.call_function(operator.getitem, (argument, i)) for i in range(len(message))
    ]  # fmt: skip
    received: dict[fx.Node, dict[tuple[Any, ...], fx.Node]] = {}
    for item, value in zip(message, arrived):
        received.setdefault(item.node, {})[item.path] = value
    return {node: line.structures[node].assemble(leaves) for node, leaves in received.items()}


def _send(graph: fx.Graph, message: tuple[Item, ...], known: dict[fx.Node, Any]) -> Any:
    """The tensors of a message: one by itself, several as a tuple."""
    outgoing: list[Any] = []
    for item in message:
        value: Any = known[item.node]
        for index in item.path:
            if isinstance(value, fx.Node):
                value = graph.call_function(operator.getitem, (value, index))
            else:
                value = value[index]
        outgoing.append(value)
    return outgoing[0] if len(outgoing) == 1 else tuple(outgoing)
