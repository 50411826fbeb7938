"""One graph out of two: what training and evaluation do differently is decided at run time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx


class Differ(Exception):  # noqa: N818 (it is caught, never shown)
    """The two graphs are not the same calls; culprit is the submodule that branches, empty for the model."""

    def __init__(self, culprit: str, what: str) -> None:
        super().__init__(culprit, what)
        self.culprit = culprit
        self.what = what


def when(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """The value for the mode.

    Example:
        >>> when(True, 0.1, 0.0), when(False, 0.1, 0.0)
        (0.1, 0.0)
    """
    return in_training if training else in_evaluation


def merge(training: fx.Graph, evaluation: fx.Graph, constants: dict[str, Any], others: dict[str, Any]) -> fx.Graph:
    """The training graph, reading the mode wherever the evaluation graph has another constant.

    So ``dropout(x, training=self.training)`` becomes a call whose argument is the flag of the module that
    wrote it, and ``dropout_p=self.p if self.training else 0.0`` a choice between the two numbers.

    Raises:
        Differ: The graphs are not the same calls.
    """
    ones, twos = list(training.nodes), list(evaluation.nodes)
    longer = ones if len(ones) >= len(twos) else twos
    same: dict[fx.Node, fx.Node] = {}
    for i, (one, two) in enumerate(zip(ones, twos)):
        if one.op != two.op or one.target != two.target or _unlike(constants, others, one):
            raise Differ(caller(longer[i]), f"first at '{longer[i].target}'")
        same[two] = one
        try:
            one.args = _join(one, one.args, two.args, same)
            one.kwargs = _join(one, one.kwargs, two.kwargs, same)
        except ValueError:
            raise Differ(caller(one), f"first at '{one.target}'") from None
    return training


def stack(node: fx.Node) -> list[str]:
    """The submodules within which a node was written, outermost first; a call of a submodule is its own."""
    return [name for name, _ in node.meta.get("nn_module_stack", {}).values()]


def caller(node: fx.Node) -> str:
    """The submodule whose forward wrote the node, empty for the model itself."""
    within = stack(node)
    if node.op == "call_module":
        within = within[:-1]
    return within[-1] if within else ""


def _unlike(constants: dict[str, Any], others: dict[str, Any], node: fx.Node) -> bool:
    """Whether the node names a constant that came out otherwise the second time, as random numbers do."""
    if node.op != "get_attr" or node.target not in constants:
        return False
    one, two = constants[str(node.target)], others[str(node.target)]
    return isinstance(one, Tensor) and not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))


def _join(node: fx.Node, one: Any, two: Any, same: dict[fx.Node, fx.Node]) -> Any:
    """Two arguments as one; ValueError where they are not built alike."""
    if isinstance(one, fx.Node) or isinstance(two, fx.Node):
        if same.get(two) is not one:
            raise ValueError
        return one
    if isinstance(one, tuple | list) and isinstance(two, tuple | list) and len(one) == len(two):
        joined = [_join(node, a, b, same) for a, b in zip(one, two)]
        return tuple(joined) if isinstance(one, tuple) else joined
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return {key: _join(node, one[key], two[key], same) for key in one}
    if isinstance(one, slice) and isinstance(two, slice):
        return slice(*(_join(node, getattr(one, s), getattr(two, s), same) for s in ("start", "stop", "step")))
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
