"""Weights that several stages use: tied weights, and submodules that are called in more than one stage.

The first stage that uses a weight owns it. Its value leaves the owner with each batch, as one more output of its
forward, and is relayed by the stages between. So a later stage sees the version of the owner's forward, and the chain
rule brings the weight's gradient (or takes its tangent) along the same way. A later stage that calls a submodule with
such a weight has a copy of the submodule without it, which gets the value for the time of the call.

A buffer that stages only read is copied; one that forward changes cannot be shared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor, fx, nn

from freewheel.split._line import Item, Line
from freewheel.split._owners import Owned, owned_by, stage_nodes
from freewheel.split._structure import OneTensor


def lent(weight: Tensor) -> Tensor:
    """A weight's value for later stages, in memory that no update changes."""
    return weight.clone()


def borrowing(module: nn.Module, names: tuple[str, ...], values: tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Any:
    """Call a module with these values in place of the weights that it lacks.

    Example:
        >>> import torch
        >>> layer = without(nn.Linear(2, 2, bias=False), {"weight": None})
        >>> borrowing(layer, ("weight",), (torch.eye(2),), torch.ones(1, 2)), list(layer.parameters())
        (tensor([[1., 1.]]), [])
    """
    with _filled(module, dict(zip(names, values))):
        return module(*args, **kwargs)


@contextmanager
def _filled(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    slots = []
    for name, value in values.items():
        path, _, last = name.rpartition(".")
        parameters: dict[str, Any] = module.get_submodule(path)._parameters
        parameters[last] = value
        slots.append((parameters, last))
    try:
        yield
    finally:
        for parameters, last in slots:
            parameters[last] = None


def without(module: nn.Module, foreign: Mapping[str, Tensor | None]) -> nn.Module:
    """A copy of a module's structure, with its own parameters and buffers except foreign ones.

    Args:
        module: The module.
        foreign: By their name, what to replace: a parameter by None, a buffer by a copy.
    """
    made = copy.copy(module)
    vars(made).update(_parameters=dict(module._parameters), _buffers=dict(module._buffers))
    for name in made._parameters.keys() & foreign.keys():
        made._parameters[name] = None
    copied = made._buffers.keys() & foreign.keys()
    made._buffers.update({name: foreign[name] for name in copied})
    vars(made).update(_non_persistent_buffers_set=made._non_persistent_buffers_set | copied)
    children: dict[str, Any] = {}
    for name, child in module._modules.items():
        inside = {n.removeprefix(f"{name}."): t for n, t in foreign.items() if n.startswith(f"{name}.")}
        children[name] = without(child, inside) if child is not None and inside else child
    vars(made).update(_modules=children)
    return made


@dataclass(frozen=True)
class Ownership:
    """Which stage owns each parameter and buffer that is used by several.

    Attributes:
        owner: The stage, by the tensor's id.
        borrowers: The stages that borrow a weight, by its name.
    """

    owner: Mapping[int, int]
    borrowers: Mapping[str, frozenset[int]]

    def borrowed(self, stage: int) -> tuple[str, ...]:
        """The names of the weights that a stage borrows."""
        return tuple(name for name, stages in self.borrowers.items() if stage in stages)

    def held(self, stage: int, value: Any) -> Any:
        """An attribute of the model as a stage holds it, without the weights of others and with copies of buffers."""
        if isinstance(value, nn.Module):
            names = chain(value.named_parameters(remove_duplicate=False), value.named_buffers(remove_duplicate=False))
            foreign = {name: self._copy(t) for name, t in names if self._foreign(stage, t)}
            return without(value, foreign) if foreign else value
        return self._copy(value) if self._foreign(stage, value) else value

    def _foreign(self, stage: int, value: Any) -> bool:
        return self.owner.get(id(value), stage) != stage

    def _copy(self, tensor: Tensor) -> Tensor | None:
        return None if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


def tie(line: Line, spans: list[tuple[int, int]]) -> tuple[Line, Ownership]:
    """Let later stages borrow the weights that several stages use; a line without such weights is unchanged."""
    uses: dict[int, list[tuple[int, fx.Node, Owned]]] = {}
    for stage, nodes in enumerate(stage_nodes(line, spans)):
        for node in nodes:
            for owned in owned_by(line, node):
                uses.setdefault(id(owned.tensor), []).append((stage, node, owned))
    shared = {key: found for key, found in uses.items() if len({stage for stage, _, _ in found}) > 1}
    weights = [found for found in shared.values() if found[0][2].kind == "parameter"]
    owner = {key: found[0][0] for key, found in shared.items()}
    borrowers = {each[0][2].name: frozenset(stage for stage, _, _ in each) - {each[0][0]} for each in weights}
    return _lend(line, spans, weights) if weights else line, Ownership(owner, borrowers)


def _lend(line: Line, spans: list[tuple[int, int]], weights: list[list[tuple[int, fx.Node, Owned]]]) -> Line:
    """Send each weight from its first user to the last stage that uses it."""
    graph = line.traced.graph
    position, structures = dict(line.position), dict(line.structures)
    messages = [list(message) for message in line.messages]
    borrowers: dict[fx.Node, dict[str, fx.Node]] = {}
    for found in weights:
        owner, first, owned = found[0]
        with graph.inserting_after(first):
            weight = graph.get_attr(owned.name)
        with graph.inserting_after(weight):
            value = graph.call_function(lent, (weight,))
        structures[weight] = structures[value] = OneTensor(owned.tensor.numel())
        position[value] = position[first]
        for cut in range(position[value] + 1, spans[max(stage for stage, _, _ in found)][0] + 1):
            messages[cut].append(Item(value, (), owned.tensor.numel()))
        for stage, node, used in found:
            if stage == owner:
                continue
            if used.module:
                calls = [n for n in line.attributes(node) if n.op == "call_module" and str(n.target) == used.module]
                for call in calls:
                    borrowers.setdefault(call, {})[used.name.removeprefix(f"{used.module}.")] = value
            else:
                _redirect(line, node, used.name, value)
    for call, values in borrowers.items():
        with graph.inserting_before(call):
            module = graph.create_node("get_attr", str(call.target))
        call.op, call.target = "call_function", borrowing
        call.args = (module, tuple(values), tuple(values.values()), *call.args)
    ordered = {node: position[node] for node in graph.nodes if node in position}
    return replace(line, position=ordered, structures=structures, messages=tuple(map(tuple, messages)))


def _redirect(line: Line, node: fx.Node, name: str, value: fx.Node) -> None:
    """Make a node use the value where it read the attribute, also through free nodes."""
    for source in node.all_input_nodes:
        if source.op == "get_attr" and source.target == name:
            node.replace_input_with(source, value)
        elif source not in line.position:
            _redirect(line, source, name, value)
