"""One graph for both modes: what training and evaluation do differently is decided at run time."""

from __future__ import annotations

from itertools import groupby, takewhile
from typing import Any, NamedTuple

import torch
from torch import fx

from freewheel.split._tree import container, entries, rebuild, tensors

Difference = tuple[str, str]  # a submodule ("" for the model) that depends on the mode, and its first call that does


class _Step(NamedTuple):
    """A call that a module makes itself or, with the op "within", all calls within one call of a submodule."""

    op: str
    target: Any
    nodes: list[fx.Node]


def when(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """The value for the mode.

    Example:
        >>> when(True, 0.1, 0.0), when(False, 0.1, 0.0)
        (0.1, 0.0)
    """
    return in_training if training else in_evaluation


def branches(training: fx.Graph, evaluation: fx.Graph) -> list[Difference]:
    """The innermost submodules that make other calls in evaluation than in training.

    A module that contains one of them is not compared itself: it may well agree once they are single calls.
    """
    return _branches(list(training.nodes), list(evaluation.nodes), 0, "")


def merge(
    training: fx.Graph, evaluation: fx.Graph, constants: dict[str, Any], others: dict[str, Any]
) -> list[Difference]:
    """Make the training graph read the mode wherever the evaluation graph, of the same calls, has another constant.

    So ``dropout(x, training=self.training)`` becomes a call whose argument is the flag of the module that
    made it, and ``dropout_p=self.p if self.training else 0.0`` a choice between the two numbers.

    Returns:
        The submodules whose arguments or constants (``others`` in evaluation) cannot be merged, none if all can.
    """
    same: dict[fx.Node, fx.Node] = {}
    found: dict[str, str] = {}
    for one, two in zip(list(training.nodes), list(evaluation.nodes)):
        same[two] = one
        if any(found.keys() & set(stack(node)) for node in (one, *one.all_input_nodes)):
            continue  # a consequence of a difference found before
        try:
            if _unlike(constants, others, one):
                raise ValueError
            one.args = _join(one, one.args, fx.map_arg(two.args, same.__getitem__))
            one.kwargs = _join(one, one.kwargs, fx.map_arg(two.kwargs, same.__getitem__))
        except ValueError:
            found.setdefault(caller(one), str(one.target))
    return list(found.items())


def stack(node: fx.Node) -> list[str]:
    """The submodules whose calls enclose a node, outermost first; a call of a submodule encloses itself."""
    return [name for name, _ in node.meta.get("nn_module_stack", {}).values()]


def caller(node: fx.Node) -> str:
    """The submodule whose forward makes the call, empty for the model itself."""
    enclosing = stack(node)[: -1 if node.op == "call_module" else None]
    return enclosing[-1] if enclosing else ""


def _branches(ones: list[fx.Node], twos: list[fx.Node], depth: int, module: str) -> list[Difference]:
    both = _steps(ones, depth), _steps(twos, depth)
    within = [{step.target: step for step in steps if step.op == "within"} for steps in both]
    found = {(t, str((within[0] | within[1])[t].nodes[0].target)) for t in within[0].keys() ^ within[1].keys()}
    for target in within[0].keys() & within[1].keys():
        for mine, other in zip(*([s.nodes for s in steps if s[:2] == ("within", target)] for steps in both)):
            found |= set(_branches(mine, other, depth + 1, target))
    same = list(takewhile(lambda pair: pair[0][:2] == pair[1][:2], zip(*both)))
    longer = max(both, key=len)
    if not found and len(same) < len(longer):
        return [(module, str(longer[len(same)].target))]
    return sorted(found)


def _steps(nodes: list[fx.Node], depth: int) -> list[_Step]:
    """The steps of a module, given the nodes of one call of it, which lies `depth` calls deep."""

    def step(node: fx.Node) -> tuple[str, str, Any]:
        calls = list(node.meta.get("nn_module_stack", {}).items())[: -1 if node.op == "call_module" else None]
        if len(calls) <= depth:
            return node.name, node.op, node.target
        return calls[depth][0], "within", calls[depth][1][0]

    return [_Step(op, target, list(group)) for (_, op, target), group in groupby(nodes, step)]


def _unlike(constants: dict[str, Any], others: dict[str, Any], node: fx.Node) -> bool:
    """Whether the node reads a constant that differs between the two traces, such as random numbers."""
    if node.op != "get_attr" or node.target not in constants:
        return False
    pairs = zip(tensors(constants[str(node.target)]), tensors(others[str(node.target)]))
    return not all(torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)) for one, two in pairs)


def _join(node: fx.Node, one: Any, two: Any) -> Any:
    """Merge two arguments; ValueError where they depend on different nodes."""
    if one is two:
        return one
    kind = container(one)
    if kind and kind is container(two) and [k for k, _ in entries(one)] == [k for k, _ in entries(two)]:
        return rebuild(one, [_join(node, a, b) for (_, a), (_, b) in zip(entries(one), entries(two))])
    if all(isinstance(value, slice) for value in (one, two)):
        return slice(*_join(node, (one.start, one.stop, one.step), (two.start, two.stop, two.step)))
    if type(one) is type(two) and (one == two or (one != one and two != two)):
        return one
    if _holds_node(one) or _holds_node(two):
        raise ValueError
    return _choice(node, one, two)


def _choice(node: fx.Node, one: Any, two: Any) -> fx.Node:
    """A node that has the first value in training and the second in evaluation."""
    owner = caller(node)
    with node.graph.inserting_before(node):
        flag = node.graph.create_node("get_attr", f"{owner}.training" if owner else "training")
        if one is True and two is False:
            return flag
        return node.graph.call_function(when, (flag, one, two))


def _holds_node(value: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return bool(found)
