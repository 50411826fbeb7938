"""Make the stage modules: each holds the model's own submodules under their own names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from freewheel.split._learned import learned
from freewheel.split._line import Item, Line
from freewheel.split._tied import Ownership
from freewheel.split._tree import entries, rebuild


class GraphStage(nn.Module):
    """A stage of a traced model, with one message as input and one as output.

    A message is the tensor that crosses the cut, or a tuple if there are several.

    Args:
        graph: Its calls.
        borrows: The names of weights of earlier stages that it uses.
    """

    def __init__(self, graph: fx.Graph, borrows: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._fw_borrows = borrows
        self._fw_graph = graph
        self._fw_run = _compile(graph)

    def forward(self, message: Any) -> Any:
        """Run this stage's calls of the model's forward."""
        return self._fw_run(self, message)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_fw_run"}
        return {**state, "_fw_graph": _listed(self._fw_graph)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fw_graph = _rebuilt(state["_fw_graph"])
        self._fw_run = _compile(self._fw_graph)


def read_directly(stage: nn.Module) -> set[int]:
    """The ids of the parameters that a stage uses outside of its submodules, or lends."""
    if not isinstance(stage, GraphStage):
        return set()
    names = {str(node.target) for node in stage._fw_graph.nodes if node.op == "get_attr"}
    return {id(p) for name, p in stage.named_parameters(remove_duplicate=False) if name in names}


class _Place(NamedTuple):
    """A node as an argument: its place in the list."""

    number: int


def _listed(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """A graph as a list of its nodes; pickle follows a graph from node to node, too deep for a large one."""
    places = {node: _Place(i) for i, node in enumerate(graph.nodes)}
    return [
        (n.op, ByName.of(n.target), *fx.map_arg((n.args, n.kwargs), places.__getitem__), n.name) for n in graph.nodes
    ]


def _rebuilt(listed: list[tuple[Any, ...]]) -> fx.Graph:
    """Invert `_listed`."""
    graph, made = fx.Graph(), []
    for op, target, args, kwargs, name in listed:
        args, kwargs = (_with_nodes(value, made) for value in (args, kwargs))
        made.append(graph.create_node(op, ByName.resolve(target), args, kwargs, name=name))
    return graph


def _with_nodes(value: Any, made: list[fx.Node]) -> Any:
    if type(value) is _Place:
        return made[value.number]
    if isinstance(value, slice):
        return slice(*(_with_nodes(part, made) for part in (value.start, value.stop, value.step)))
    found = entries(value)
    return rebuild(value, [_with_nodes(entry, made) for _, entry in found]) if found else value


@dataclass(frozen=True)
class ByName:
    """A function of torch that pickle cannot find by its own name, such as `F.max_pool2d`: found by that of torch."""

    name: str

    @staticmethod
    def of(function: Any) -> Any:
        """The function as pickle takes it.

        Example:
            >>> ByName.of(nn.functional.max_pool2d), ByName.of(operator.add) is operator.add
            (ByName(name='max_pool2d'), True)
        """
        return ByName(_NAMES[id(function)]) if id(function) in _NAMES else function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return ByName.resolve(self)(*args, **kwargs)

    @staticmethod
    def resolve(target: Any) -> Any:
        """Invert `of`."""
        return getattr(nn.functional, target.name) if isinstance(target, ByName) else target


# Functions that torch makes by `boolean_dispatch`.
_NAMES = {
    id(function): name
    for name, function in vars(nn.functional).items()
    if isinstance(function, FunctionType) and "<locals>" in function.__qualname__
}


def borrowed(stages: Iterable[nn.Module]) -> list[str]:
    """The names of the weights that a stage uses and an earlier one owns."""
    found = [stage._fw_borrows for stage in stages if isinstance(stage, GraphStage)]
    return list(dict.fromkeys(chain.from_iterable(found)))


def _compile(graph: fx.Graph) -> Any:
    """The graph as a Python function of the stage and its message."""
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<freewheel stage>", "exec"), names)
    return names["forward"]


def make_stages(line: Line, ownership: Ownership, spans: list[tuple[int, int]]) -> list[nn.Module]:
    """One module for each span of units."""
    plain = line.traced.sequential and line.units[0].all_input_nodes[0].op == "placeholder"
    plain = plain and not ownership.owner
    if plain and all(line.structures[line.units[start - 1]].is_message() for start, _ in spans[1:]):
        return [_sequential(line, start, end) for start, end in spans]
    return [_graph_stage(line, stage, spans, ownership) for stage in range(len(spans))]


def _sequential(line: Line, start: int, end: int) -> nn.Module:
    stage = nn.Sequential()
    stage.training = line.model.training
    _install(stage, line, [str(unit.target) for unit in line.units[start:end]], nn.Sequential)
    return stage


def _graph_stage(line: Line, number: int, spans: list[tuple[int, int]], ownership: Ownership) -> nn.Module:
    stage = GraphStage(_subgraph(line, *spans[number]), ownership.borrowed(number))
    stage.training = line.model.training
    targets = {str(n.target) for n in stage._fw_graph.nodes if n.op in ("call_module", "get_attr")}
    held = partial(ownership.held, number)
    _install(stage, line, sorted(targets, key=lambda t: (t.count("."), t)), nn.Module, held)
    return stage


def _install(
    stage: nn.Module,
    line: Line,
    targets: Iterable[str],
    container: type[nn.Module],
    held: Callable[[Any], Any] = lambda value: value,
) -> None:
    """Give the stage what the model has under these names, as the stage holds it, inside of new containers."""
    whole: set[str] = set()
    for target in targets:
        *prefix, name = target.split(".")
        paths = list(accumulate(prefix, "{}.{}".format))
        if not whole.isdisjoint(paths):
            continue  # the stage already has the whole submodule
        whole.add(target)
        place = stage
        for step, path in zip(prefix, paths):
            if step not in place._modules:
                place.add_module(step, container())
                place.get_submodule(step).training = line.traced.fetch(path).training
            place = place.get_submodule(step)
        original = line.traced.fetch(target)
        value = held(original)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            place.register_buffer(name, value, persistent=value is original and target in line.traced.saved)
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
    needs_gradient = learned(line)
    for item, value in zip(message, arrived):
        value = value if item.node in needs_gradient else graph.call_method("detach", (value,))
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
