"""A model as a graph of calls in execution order.

A ``nn.Sequential`` is converted child by child. Any other model is traced with ``torch.fx``, once in training and once
in evaluation mode; what differs between the two follows the mode at run time. A submodule that cannot be traced, that
makes other calls in the other mode, or that has hooks is kept whole: it is one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx, nn

from freewheel.split._modes import branches, merge
from freewheel.split._tracer import MANUAL_SPLIT, hooked, record
from freewheel.split._tree import entries
from freewheel.split._undisturbed import unpacks

_OTHER_PATH = "takes another path in training than in evaluation (first at '{}')"


@dataclass(frozen=True)
class Traced:
    """A graph of calls on the attributes of a model.

    Attributes:
        model: The model.
        graph: Its calls; the placeholder is the one argument of the first stage.
        constants: Tensors that forward creates independently of its input, by their name in the graph.
        untraceable: Submodules that cannot be traced, each with the reason.
        sequential: Whether the graph is a plain chain of children.
    """

    model: nn.Module
    graph: fx.Graph
    constants: dict[str, Any]
    untraceable: Mapping[str, str] = field(default_factory=dict)
    sequential: bool = False

    @cached_property
    def saved(self) -> frozenset[str]:
        """The names in the model's state dict."""
        return frozenset(self.model.state_dict(keep_vars=True))

    def submodules(self) -> dict[str, nn.Module]:
        """The submodules that are called."""
        called = {str(node.target): None for node in self.graph.nodes if node.op == "call_module"}
        return {name: self.model.get_submodule(name) for name in called}

    @cached_property
    def whole(self) -> dict[str, str]:
        """The submodules that are kept whole, each with the reason."""
        called = self.submodules().items()
        hooks = {name: "it has hooks" for name, m in called if hooked(m) and next(m.children(), None) is not None}
        return {**self.untraceable, **hooks}

    def fetch(self, target: str) -> Any:
        """The object that a name in the graph refers to."""
        if target in self.constants:
            return self.constants[target]
        value: Any = self.model
        for name in target.split(".") if target else ():
            value = getattr(value, name)
        return value

    def run(self, node: fx.Node, values: Callable[[fx.Node], Any]) -> Any:
        """The value of one node, given the values of earlier nodes."""
        args = fx.map_arg(node.args, values)
        kwargs = fx.map_arg(node.kwargs, values)
        if node.op == "get_attr":
            return self.fetch(str(node.target))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = self.fetch(str(node.target)) if node.op == "call_module" else node.target
        return function(*args, **kwargs)


def convert_sequential(model: nn.Sequential, example: Any, *, flat: bool) -> Traced:
    """Convert a Sequential to a chain of its children, and of those of nested Sequentials if `flat`."""
    graph = fx.Graph()
    value = graph.placeholder("batch")
    if unpacks(example):  # its one argument, by position or by name
        value = graph.call_function(operator.getitem, (value, entries(example)[0][0]))

    def chain(parent: nn.Module, prefix: str) -> None:
        nonlocal value
        for name, child in parent._modules.items():
            assert child is not None
            if flat and is_plain_sequential(child):
                chain(child, f"{prefix}{name}.")
            else:
                value = graph.create_node("call_module", f"{prefix}{name}", (value,))

    chain(model, "")
    graph.output(value)
    return Traced(model, graph, constants={}, sequential=True)


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether a module only calls its children in turn and has no hooks."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not hooked(module)


def trace(model: nn.Module, example: Any) -> Traced:
    """Trace any model whose own forward can be traced; without an example it takes one tensor."""
    whole: dict[str, str] = {}
    while True:
        training, constants = record(model, example, whole, training=True)
        known = len(whole)
        evaluation, others = record(model, example, whole, training=False)
        if len(whole) > known:
            continue  # the training graph still has calls within them
        found = branches(training, evaluation) or merge(training, evaluation, constants, others)
        if not found:
            return Traced(model, training, constants, whole)
        inner = {module: _OTHER_PATH.format(call) for module, call in found if module}
        if not inner:
            raise ValueError(
                f"model: {type(model).__name__}.forward {_OTHER_PATH.format(found[0][1])}: "
                f"move the branch into a submodule, which is then kept whole, {MANUAL_SPLIT}"
            )
        whole |= inner
