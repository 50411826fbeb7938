"""A model as a graph of calls in execution order, in one of two ways.

A ``nn.Sequential`` is written down as it stands. Everything else is traced with ``torch.fx``, once in
training and once in evaluation; what differs between the two follows the mode at run time. A submodule
that cannot be traced, that takes another path in the other mode, or that has hooks is kept whole: it is
one call.
"""

from __future__ import annotations

import inspect
import operator
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from freewheel.split._modes import Differ, merge
from freewheel.split._undisturbed import undisturbed

BY_HAND = "or cut by hand: a list of stages is always accepted: fw.Trainer([stage0, stage1], ...)"


@dataclass(frozen=True)
class Traced:
    """A graph of calls on the attributes of a model.

    Attributes:
        model: The model.
        graph: Its calls; the placeholder is the one argument of the first stage.
        constants: Tensors that forward made without looking at its input, by the name the graph gives them.
        whole: Submodules kept whole because they cannot be traced.
        sequential: Whether the graph is a plain chain of children.
    """

    model: nn.Module
    graph: fx.Graph
    constants: dict[str, Any]
    whole: tuple[str, ...] = ()
    sequential: bool = False

    def fetch(self, target: str) -> Any:
        """What a name in the graph stands for."""
        if target in self.constants:
            return self.constants[target]
        value: Any = self.model
        for name in target.split(".") if target else ():
            value = getattr(value, name)
        return value

    def run(self, node: fx.Node, values: Callable[[fx.Node], Any]) -> Any:
        """The value of one node, given the values of those before it."""
        args = fx.map_arg(node.args, values)
        kwargs = fx.map_arg(node.kwargs, values)
        if node.op == "get_attr":
            return self.fetch(str(node.target))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = self.fetch(str(node.target)) if node.op == "call_module" else node.target
        return function(*args, **kwargs)


def write_down(model: nn.Sequential, example: Any, *, flat: bool) -> Traced:
    """A Sequential as a chain of its children; nested ones give theirs if it is to be flat."""
    graph = fx.Graph()
    value = graph.placeholder("batch")
    if isinstance(example, tuple | dict):  # its one argument, by place or by name
        index = 0 if isinstance(example, tuple) else next(iter(example))
        value = graph.call_function(operator.getitem, (value, index))

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
    """Whether a module only calls its children in turn, with nothing hooked on to it."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not hooked(module)


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its forward says."""
    return any([module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks])


def trace(model: nn.Module, example: Any) -> Traced:
    """The graph of any model whose own forward can be traced.

    Args:
        model: The model.
        example: What the model is called with, or None for one tensor.
    """
    whole: list[str] = []
    while True:
        try:
            training, constants = _record(model, example, whole, training=True)
            evaluation, others = _record(model, example, whole, training=False)
            graph = merge(training, evaluation, constants, others)
            return Traced(model, graph, constants, tuple(whole))
        except _UntraceableError as stop:
            if not stop.culprit:
                raise ValueError(_explain(model, stop)) from stop.__cause__
            whole.append(stop.culprit)
        except Differ as stop:
            if not stop.culprit:
                raise ValueError(
                    f"model: {type(model).__name__}.forward takes another path in training than in "
                    f"evaluation ({stop.what}): move the branch into a submodule, which is then kept whole, "
                    f"{BY_HAND}"
                ) from None
            whole.append(stop.culprit)


class _UntraceableError(Exception):
    """Tracing failed inside the submodule named by culprit, or in the model's own forward if it is empty."""

    def __init__(self, culprit: str) -> None:
        super().__init__(culprit)
        self.culprit = culprit


class _Tracer(fx.Tracer):
    """Traces a model whose single argument is the example as a whole."""

    def __init__(self, example: Any, whole: list[str]) -> None:
        super().__init__(param_shapes_constant=True)
        self.example = example
        self.whole = whole
        self.culprit = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = module_qualified_name in self.whole or hooked(m)
        return whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            path = next((name for name, module in self.root.named_modules() if module is m), "")
            if not self.culprit and path and not self.is_leaf_module(m, path):
                self.culprit = path
            raise

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Buffers are looked up at run time, as parameters are."""
        if isinstance(attr_val, Tensor) and not isinstance(attr_val, nn.Parameter):
            for name, buffer in self.root.named_buffers():
                if buffer is attr_val:
                    if name not in parameter_proxy_cache:
                        parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
                    return parameter_proxy_cache[name]
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """One placeholder; its parts go where the call of the model puts them."""
        batch = self.create_proxy("placeholder", "batch", (), {})
        parts = _unpack(batch, self.example)

        def forward(root: nn.Module) -> Any:
            if isinstance(parts, tuple):
                return root_fn(root, *parts)
            return root_fn(root, **parts) if isinstance(parts, dict) else root_fn(root, parts)

        return forward, [self.root]


def _unpack(proxy: Any, example: Any) -> Any:
    if isinstance(example, tuple):
        return tuple(_unpack(proxy[i], part) for i, part in enumerate(example))
    if isinstance(example, list):
        return [_unpack(proxy[i], part) for i, part in enumerate(example)]
    if isinstance(example, dict):
        return {key: _unpack(proxy[key], part) for key, part in example.items()}
    return proxy


def _record(model: nn.Module, example: Any, whole: list[str], *, training: bool) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph in one mode, and the constants it refers to."""
    tracer = _Tracer(example, whole)
    known = set(vars(model))
    with undisturbed(model, training=training, seed=int(training)):
        try:
            graph = tracer.trace(model)
        except Exception as error:
            raise _UntraceableError(tracer.culprit) from error
        used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
        made = {name: vars(model)[name] for name in set(vars(model)) - known if name in used}
    return graph, {name: v.detach() if isinstance(v, Tensor) else v for name, v in made.items()}


def _explain(model: nn.Module, stop: _UntraceableError) -> str:
    """One line: which line of forward stopped the trace, and what to do."""
    error = stop.__cause__
    assert error is not None
    ours = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"model: {type(model).__name__}.forward cannot be traced{where}: {reason}; "
        f"move that line into a submodule, which is then kept whole, {BY_HAND}"
    )


def takes_one_argument(model: nn.Module) -> bool:
    """Whether the model can be called with one positional argument."""
    try:
        inspect.signature(model.forward).bind(object())
    except TypeError:
        return False
    return True
