"""Build the stage modules: each holds the model's own submodules under their own names."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx, nn

from freewheel.split._line import Item, Line
from freewheel.split._values import Layout, OneTensor, Plain


class GraphStage(nn.Module):
    """A stage of a traced model: one value in, one value out.

    What arrives is the tensor that crosses the cut, or a tuple if there are several; so is what leaves.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self._fw_graph = graph
        self._fw_run = _compile(graph)

    def forward(self, message: Any) -> Any:
        """Do this stage's part of the model's forward."""
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


def build(line: Line, parts: list[tuple[int, int]]) -> list[nn.Module]:
    """One module for each part of the line."""
    plain = line.traced.sequential and line.units[0].all_input_nodes[0].op == "placeholder"
    if plain and all(_travels_as_is(line, start) for start, _ in parts[1:]):
        return [_sequential(line, start, end) for start, end in parts]
    return [_graph_stage(line, start, end) for start, end in parts]


def _travels_as_is(line: Line, cut: int) -> bool:
    """Whether what a child returns is already a message."""
    layout = line.layouts[line.units[cut - 1]]
    flat = isinstance(layout, tuple) and len(layout) > 1 and all(isinstance(p, OneTensor) for p in layout)
    return flat or isinstance(layout, OneTensor)


def _sequential(line: Line, start: int, end: int) -> nn.Module:
    stage = _like(line.model, nn.Sequential())
    for unit in line.units[start:end]:
        *prefix, name = str(unit.target).split(".")
        place, path = stage, ""
        for step in prefix:
            path = f"{path}.{step}" if path else step
            if step not in dict(place.named_children()):
                place.add_module(step, _like(line.traced.fetch(path), nn.Sequential()))
            place = place.get_submodule(step)
        place.add_module(name, line.traced.fetch(str(unit.target)))
    return stage


def _like(original: nn.Module, container: nn.Module) -> nn.Module:
    container.training = original.training
    return container


def _graph_stage(line: Line, start: int, end: int) -> nn.Module:
    stage = GraphStage(_subgraph(line, start, end))
    stage.training = line.model.training
    saved = set(line.model.state_dict())
    targets = {str(n.target) for n in stage._fw_graph.nodes if n.op in ("call_module", "get_attr")}
    for target in sorted(targets, key=lambda t: (t.count("."), t)):
        _install(stage, line, target, persistent=target in saved)
    return stage


def _install(stage: nn.Module, line: Line, target: str, *, persistent: bool) -> None:
    """Give the stage what the model has under this name."""
    *prefix, name = target.split(".")
    place, path = stage, ""
    for step in prefix:
        path = f"{path}.{step}" if path else step
        original = line.traced.fetch(path)
        if step not in dict(place.named_children()):
            place.add_module(step, _like(original, nn.Module()))
        place = place.get_submodule(step)
        if place is original:
            return  # the whole submodule is there already, with all that is in it
    value = line.traced.fetch(target)
    if isinstance(value, nn.Parameter):
        place.register_parameter(name, value)
    elif isinstance(value, Tensor):
        place.register_buffer(name, value, persistent=persistent)
    elif isinstance(value, nn.Module):
        place.add_module(name, value)
    elif name != "training":
        setattr(place, name, value)


def _subgraph(line: Line, start: int, end: int) -> fx.Graph:
    """The nodes of the units from start up to end, between what arrives and what leaves."""
    graph = fx.Graph()
    known: dict[fx.Node, Any] = _unpack(line, graph, line.messages[start]) if start else {}

    def copy(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source not in known:
                copy(source)  # free: this stage works it out for itself
        known[node] = graph.node_copy(node, known.__getitem__)
        known[node].meta, known[node].type = {}, None

    for node in line.traced.graph.nodes:
        if node in line.position and start <= line.position[node] < end and node not in known:
            copy(node)
    if end < len(line.units):
        graph.output(_pack(graph, line.messages[end], known))
    else:
        copy(line.traced.graph.output_node())
    return graph


def _unpack(line: Line, graph: fx.Graph, message: tuple[Item, ...]) -> dict[fx.Node, Any]:
    """The values that arrive, each put together again as it was when it left."""
    argument = graph.placeholder("message")
    arrived = [argument] if len(message) == 1 else [
        graph.call_function(operator.getitem, (argument, i)) for i in range(len(message))
    ]  # fmt: skip
    by_place = {(item.node, item.path): value for item, value in zip(message, arrived)}

    def assemble(node: fx.Node, layout: Layout, path: tuple[Any, ...]) -> Any:
        if isinstance(layout, tuple | list):
            parts = [assemble(node, part, (*path, i)) for i, part in enumerate(layout)]
            return tuple(parts) if isinstance(layout, tuple) else parts
        if isinstance(layout, dict):
            return {key: assemble(node, part, (*path, key)) for key, part in layout.items()}
        return layout.value if isinstance(layout, Plain) else by_place[node, path]

    return {node: assemble(node, line.layouts[node], ()) for node in {item.node: None for item in message}}


def _pack(graph: fx.Graph, message: tuple[Item, ...], known: dict[fx.Node, Any]) -> Any:
    """The tensors that leave: one by itself, several as a tuple."""
    leaving: list[Any] = []
    for item in message:
        value: Any = known[item.node]
        for index in item.path:
            if isinstance(value, fx.Node):
                value = graph.call_function(operator.getitem, (value, index))
            else:
                value = value[index]
        leaving.append(value)
    return leaving[0] if len(leaving) == 1 else tuple(leaving)
