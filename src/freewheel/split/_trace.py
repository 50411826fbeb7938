"""A model as a graph of calls in execution order.

A ``nn.Sequential`` is converted child by child. Any other model is traced with ``torch.fx``, once in training and once
in evaluation mode; what differs between the two follows the mode at run time. A submodule that cannot be traced, that
makes other calls in the other mode, or that has hooks is kept whole: it is one call. Where the model itself cannot be
traced, or a list of blocks would be kept whole, its calls are recorded while it runs on the example.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import fx, nn

from freewheel.split._blocks import has_blocks
from freewheel.split._modes import branches, merge
from freewheel.split._record import record_calls, recordable
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
        recorded: Whether it is what the model did for one example.
    """

    model: nn.Module
    graph: fx.Graph
    constants: dict[str, Any]
    untraceable: Mapping[str, str] = field(default_factory=dict)
    sequential: bool = False
    recorded: bool = False

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
    """Trace a model with torch.fx, or record it where that fails or would keep a list of blocks whole."""
    try:
        traced = _merged(model, partial(record, model, example))
    except ValueError as error:
        if example is None:
            raise ValueError(f"{error}; or give example=, with which more can be traced") from error
        return record_run(model, example)
    if example is None or not any(has_blocks(traced.fetch(name)) for name in traced.untraceable):
        return traced
    try:
        return record_run(model, example)
    except ValueError:
        return traced


def record_run(model: nn.Module, example: Any) -> Traced:
    """Record a model while it runs on the example; see `Recorder`."""
    found: list[Traced] = []
    reason: ValueError | None = None
    for compiling in (False, True):  # libraries take the way for all values where they know that they are traced
        try:
            with recordable(model, compiling=compiling):
                found.append(_merged(model, partial(record_calls, model, example)))
        except ValueError as error:
            reason = reason or error
        if found and not found[0].untraceable:
            break
    if not found:
        assert reason is not None
        raise reason
    best = min(found, key=lambda traced: sum(has_blocks(traced.fetch(name)) for name in traced.untraceable))
    return replace(best, recorded=True)


def _merged(model: nn.Module, record: Callable[..., tuple[fx.Graph, dict[str, Any]]]) -> Traced:
    """Trace the model in both modes; what differs between them is decided at run time or kept whole."""
    whole: dict[str, str] = {}
    while True:
        training, constants = record(whole, training=True)
        known = len(whole)
        evaluation, others = record(whole, training=False)
        if len(whole) > known:
            continue  # the training graph still has calls within them
        found = branches(training, evaluation) or merge(training, evaluation, constants, others)
        if not found:
            return Traced(model, training, constants, whole)
        inner = {m: _OTHER_PATH.format(call.removeprefix(f"{m}.")) for m, call in found if m}
        if not inner:
            raise ValueError(
                f"model: {type(model).__name__}.forward {_OTHER_PATH.format(found[0][1])}: "
                f"move the branch into a submodule, which is then kept whole, {MANUAL_SPLIT}"
            )
        whole |= inner
