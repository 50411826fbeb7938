"""The graph as a line of units, and what would cross a cut between any two of them.

A unit is one call that makes tensors: a leaf submodule, a function or a method. The rest has no place of
its own on the line:

- An access such as ``out[0]`` to a value of several tensors stays with the call that made the value.
- Attributes of the model, the mode, and plain values such as ``x.size(0)`` are free: every stage that
  needs one works it out again, from the tensor it came from. So only tensors travel, and nothing about
  the example's batch size is kept.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from freewheel.split._modes import stack
from freewheel.split._trace import Traced
from freewheel.split._values import Layout, Plain, Unsure, Values, leaves


@dataclass(frozen=True)
class Item:
    """One tensor of a message: the value of a node, or the part of it that the path leads to."""

    node: fx.Node
    path: tuple[Any, ...]
    elements: int


@dataclass(frozen=True)
class Line:
    """Units in execution order.

    Attributes:
        traced: The graph they come from.
        units: The nodes that are units.
        position: The unit each node is done with; nodes that are free are not in it.
        layouts: The layout of each node's value.
        messages: For each cut p (between the units p - 1 and p), what crosses it; messages[0] is empty.
        forbidden: The cuts that cannot be made, each with the reason.
        avoided: The cuts after which a stage would change in place what it receives. They are made only
            on request, or if there are not enough others.
        written: The attributes of the model that forward itself changes in place.
    """

    traced: Traced
    units: tuple[fx.Node, ...]
    position: dict[fx.Node, int]
    layouts: dict[fx.Node, Layout]
    messages: tuple[tuple[Item, ...], ...]
    forbidden: dict[int, str]
    avoided: frozenset[int]
    written: frozenset[str]

    @property
    def model(self) -> nn.Module:
        """The model the line was drawn from."""
        return self.traced.model

    def name(self, unit: fx.Node) -> str:
        """What a unit is called in reports and errors."""
        return str(unit.target) if unit.op == "call_module" else unit.name

    def paths(self, unit: fx.Node) -> list[str]:
        """The submodules a unit is part of."""
        if not self.traced.sequential:
            return stack(unit)
        parts = str(unit.target).split(".")
        return [".".join(parts[: i + 1]) for i in range(len(parts))]

    def attributes(self, node: fx.Node) -> list[fx.Node]:
        """The calls of submodules and the attributes that a node needs, through free nodes."""
        found = [node] if node.op in ("call_module", "get_attr") else []
        for source in node.all_input_nodes:
            if source not in self.position:
                found += self.attributes(source)
        return found


def draw(traced: Traced, values: Values) -> Line:
    """Find the units of a graph and what crosses between them."""
    units: list[fx.Node] = []
    position: dict[fx.Node, int] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "placeholder":
            position[node] = 0
        elif _is_access(node, values.layouts):
            position[node] = position[node.all_input_nodes[0]]
        elif _is_free(node, values.layouts):
            if not node.users:  # a check such as torch._assert: done once, where it stands
                position[node] = max(len(units) - 1, 0)
        else:
            position[node] = len(units)
            units.append(node)
    last = _last_needs(traced.graph, position, len(units))
    messages = [()] + [_message(p, position, last, values.layouts) for p in range(1, len(units))]
    forbidden = _forbidden(values.layouts, position, last, messages)
    writes = _writes(values, position, last)
    for cut, names in writes.items():
        if len(names) > 1:
            forbidden[cut] = f"{' and '.join(names)} share memory that is written to after it"
    return Line(
        traced=traced,
        units=tuple(units),
        position=position,
        layouts=values.layouts,
        messages=tuple(messages),
        forbidden=forbidden,
        avoided=frozenset(writes),
        written=frozenset(str(value.target) for value, _ in values.writes if value.op == "get_attr"),
    )


def _is_access(node: fx.Node, layouts: dict[fx.Node, Layout]) -> bool:
    """Whether a node only takes a part out of several tensors."""
    if node.op != "call_function" or node.target not in (operator.getitem, getattr):
        return False
    source, index = node.args[0], node.args[1]
    if not isinstance(source, fx.Node) or not isinstance(index, int | str):
        return False
    several = isinstance(layouts[source], Unsure | tuple | list | dict)
    return several or (node.target is operator.getitem and isinstance(index, str))


def _is_free(node: fx.Node, layouts: dict[fx.Node, Layout]) -> bool:
    """Whether every stage may work the node out for itself."""
    return node.op == "get_attr" or (node.op != "call_module" and isinstance(layouts[node], Plain))


def _last_needs(graph: fx.Graph, position: dict[fx.Node, int], end: int) -> dict[fx.Node, int]:
    """For each node with a place, the position of the last unit that needs its value."""
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


def _message(
    cut: int, position: dict[fx.Node, int], last: dict[fx.Node, int], layouts: dict[fx.Node, Layout]
) -> tuple[Item, ...]:
    crossing = [node for node, place in position.items() if place < cut <= last.get(node, -1)]
    return tuple(Item(node, path, one.elements) for node in crossing for path, one in leaves(layouts[node]))


def _forbidden(
    layouts: dict[fx.Node, Layout],
    position: dict[fx.Node, int],
    last: dict[fx.Node, int],
    messages: list[tuple[Item, ...]],
) -> dict[int, str]:
    """The cuts that cannot be made, and why."""
    reasons = {
        cut: "nothing computed before it is used after it" for cut in range(1, len(messages)) if not messages[cut]
    }
    for node, place in position.items():
        why = _cannot_travel(layouts[node])
        if why:
            for cut in range(place + 1, min(last.get(node, -1) + 1, len(messages))):
                reasons[cut] = f"the value of '{node.name}' {why}"
    return reasons


def _writes(values: Values, position: dict[fx.Node, int], last: dict[fx.Node, int]) -> dict[int, dict[str, None]]:
    """For each cut, the values that cross it and are changed in place after it."""
    found: dict[int, dict[str, None]] = {}
    for value, writer in values.writes:
        if value in position and writer in position:
            for cut in range(position[value] + 1, min(position[writer], last.get(value, -1)) + 1):
                found.setdefault(cut, {})[f"'{value.name}'"] = None
    return found


def _cannot_travel(layout: Layout) -> str:
    if isinstance(layout, Unsure):
        return "may be several tensors: give example= so that it can be looked at"
    if isinstance(layout, Plain):
        return f"is a {type(layout.value).__name__} and only tensors travel"
    parts = layout.values() if isinstance(layout, dict) else layout if isinstance(layout, tuple | list) else ()
    inside = [p for p in parts if not (isinstance(p, Plain) and p.value is None)]
    return next((why for why in map(_cannot_travel, inside) if why), "")
