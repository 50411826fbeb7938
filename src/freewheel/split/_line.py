"""The graph as a line of units, and the values that cross a cut between any two of them.

A unit is one call that produces tensors: a leaf submodule, a function or a method. Other nodes are not units:

- An access such as ``out[0]`` to a value of several tensors belongs to the call that produced the value.
- Attributes of the model, the mode, and plain values such as ``x.size(0)`` are free: every stage that needs
  one computes it again from the tensor it came from. So only tensors are sent, and the stages do not depend
  on the example's batch size.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from freewheel.split._modes import stack
from freewheel.split._structure import Structure
from freewheel.split._trace import Traced
from freewheel.split._values import Values


@dataclass(frozen=True)
class Item:
    """One tensor of a message: the value of a node, or the entry of it that the path leads to."""

    node: fx.Node
    path: tuple[Any, ...]
    elements: int


@dataclass(frozen=True)
class Line:
    """Units in execution order.

    Attributes:
        traced: The graph they come from.
        units: The nodes that are units.
        position: The unit each node is computed with; free nodes have none.
        structures: The structure of each node's value.
        messages: For each cut p (between the units p - 1 and p), what crosses it; messages[0] is empty.
        forbidden: The cuts that cannot be made, each with the reason.
        avoided: The cuts after which a stage would change its input in place. They are made only on request,
            or if there are not enough others.
        written: The ids of parameters and buffers that forward changes.
    """

    traced: Traced
    units: tuple[fx.Node, ...]
    position: dict[fx.Node, int]
    structures: dict[fx.Node, Structure]
    messages: tuple[tuple[Item, ...], ...]
    forbidden: dict[int, str]
    avoided: frozenset[int]
    written: frozenset[int]

    @property
    def model(self) -> nn.Module:
        """The model the line was made from."""
        return self.traced.model

    @property
    def most_stages(self) -> int:
        """The largest number of stages that it can be cut into."""
        return len(self.units) - len(self.forbidden)

    def name(self, unit: fx.Node) -> str:
        """The name of a unit in reports and errors."""
        return str(unit.target) if unit.op == "call_module" else unit.name

    def paths(self, unit: fx.Node) -> list[str]:
        """The submodules that contain a unit."""
        if not self.traced.sequential:
            return stack(unit)
        names = str(unit.target).split(".")
        return [".".join(names[: i + 1]) for i in range(len(names))]

    def attributes(self, node: fx.Node) -> list[fx.Node]:
        """The calls of submodules and the attributes that a node needs, also through free nodes."""
        found = [node] if node.op in ("call_module", "get_attr") else []
        for source in node.all_input_nodes:
            if source not in self.position:
                found += self.attributes(source)
        return found


def make_line(traced: Traced, values: Values) -> Line:
    """Find the units of a graph and the messages between them."""
    units: list[fx.Node] = []
    position: dict[fx.Node, int] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "placeholder":
            position[node] = 0
        elif _is_access(node, values.structures):
            position[node] = position[node.all_input_nodes[0]]
        elif isinstance(node.target, type):  # the output is of a class of its own
            position[node] = max(len(units) - 1, 0)
        elif node.op == "get_attr" or (node.op != "call_module" and values.structures[node].plain):  # free
            if not node.users:  # a check such as torch._assert runs once, in its place
                position[node] = max(len(units) - 1, 0)
        else:
            position[node] = len(units)
            units.append(node)
    last = _last_uses(traced.graph, position, len(units))
    crossing = {node: range(place + 1, min(last.get(node, -1) + 1, len(units))) for node, place in position.items()}
    messages: list[list[Item]] = [[] for _ in units]
    for node, cuts in crossing.items():
        items = [Item(node, path, elements) for path, elements in values.structures[node].leaves()] if cuts else []
        for cut in cuts:
            messages[cut] += items
    forbidden = {
        cut: "no value computed before it is used after it" for cut in range(1, len(units)) if not messages[cut]
    }
    for node, cuts in crossing.items():
        if why := values.structures[node].obstacle() if cuts else "":
            forbidden |= dict.fromkeys(cuts, f"the value of '{node.name}' {why}")
    writes = _writes(values, crossing, position)
    for cut, names in writes.items():
        if len(names) > 1:
            forbidden[cut] = f"{' and '.join(names)} share memory that is written to after it"
    return Line(
        traced=traced,
        units=tuple(units),
        position=position,
        structures=values.structures,
        messages=tuple(map(tuple, messages)),
        forbidden=forbidden,
        avoided=frozenset(writes),
        written=frozenset(
            [id(traced.fetch(str(value.target))) for value, _ in values.writes if value.op == "get_attr"]
            + list(values.changed)
        ),
    )


def _is_access(node: fx.Node, structures: dict[fx.Node, Structure]) -> bool:
    """Whether a node only takes an entry out of several tensors."""
    if node.op != "call_function" or node.target not in (operator.getitem, getattr) or not node.all_input_nodes:
        return False
    source, index = node.all_input_nodes[0], node.args[1]
    if node.args[0] is not source or not isinstance(index, int | str):
        return False
    return structures[source].several or (node.target is operator.getitem and isinstance(index, str))


def _last_uses(graph: fx.Graph, position: dict[fx.Node, int], end: int) -> dict[fx.Node, int]:
    """For each node that is not free, the position of the last unit that needs its value."""
    last: dict[fx.Node, int] = {}

    def need(node: fx.Node, place: int) -> None:
        for source in node.all_input_nodes:
            if source in position:
                last[source] = max(last.get(source, -1), place)
            else:
                need(source, place)

    for node in graph.nodes:
        if node.op == "output":
            need(node, end)
        elif node in position:
            need(node, position[node])
    return last


def _writes(values: Values, crossing: dict[fx.Node, range], position: dict[fx.Node, int]) -> dict[int, dict[str, None]]:
    """For each cut, the values that cross it and are changed in place after it."""
    found: dict[int, dict[str, None]] = {}
    for value, writer in values.writes:
        for cut in crossing.get(value, ()):
            if cut <= position.get(writer, -1):
                found.setdefault(cut, {})[f"'{value.name}'"] = None
    return found
