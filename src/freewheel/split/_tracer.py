"""Record the calls of a model's forward in one mode with ``torch.fx``."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import ParameterProxy

from freewheel.split._transformer import CONTAINERS
from freewheel.split._tree import container, entries, map_tensors, rebuild
from freewheel.split._undisturbed import AutocastWatch, arguments, raised_by_signal, undisturbed

MANUAL_SPLIT = "or cut by hand: a list of stages is always accepted: fw.Trainer([stage0, stage1], ...)"


def record(model: nn.Module, example: Any, whole: dict[str, str], *, training: bool) -> tuple[fx.Graph, dict[str, Any]]:
    """Trace the model in one mode; return the graph and the constants it refers to.

    The submodules in `whole` are recorded as single calls. Those that cannot be traced are added to it, with the
    reason.
    """
    known = set(vars(model))
    while True:
        tracer = _ModelTracer(example, whole)
        with undisturbed(model, training=training, seed=int(training)), tracer.autocast:
            try:
                graph = tracer.trace(model)
            except Exception as error:
                if raised_by_signal(error):
                    raise
                if not tracer.untraceable:
                    raise ValueError(explain(model, error)) from error
            else:
                if not tracer.untraceable:
                    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"} - known
                    return graph, {n: map_tensors(Tensor.detach, v) for n, v in vars(model).items() if n in used}
        whole |= tracer.untraceable


def hooked(module: nn.Module) -> bool:
    """Whether calling the module runs more than its forward."""
    return any([module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks])


def is_layer(module: nn.Module) -> bool:
    """Whether a module is one call: a layer of PyTorch, or one with hooks."""
    return hooked(module) or (fx.Tracer().is_leaf_module(module, "") and type(module).forward not in CONTAINERS)


class _ModelTracer(fx.Tracer):
    """A tracer whose only placeholder is the whole example.

    A submodule that fails is recorded as one call and listed in `untraceable`. The rest of the graph then shows
    what else fails, but it has leftovers of the failed calls: trace again.
    """

    def __init__(self, example: Any, whole: Iterable[str]) -> None:
        super().__init__(param_shapes_constant=True)
        self.example = example
        self.whole = set(whole)
        self.untraceable: dict[str, str] = {}
        self.autocast = AutocastWatch()
        self._grad_enabled = torch.is_grad_enabled()
        self._names: dict[int, tuple[str, Tensor]] = {}  # of parameters and buffers, by their id

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.whole or is_layer(m)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        depth = len(self.module_stack)
        if type(m).forward in CONTAINERS:
            forward = partial(CONTAINERS[type(m).forward], m)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            path = (self.submodule_paths or {}).get(m)
            if not path or self.is_leaf_module(m, path) or raised_by_signal(error):
                raise
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            self.whole.add(path)
            self.untraceable[path] = f"its forward cannot be traced{_reason(error)}"
            return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Look up parameters and buffers at run time. The base class searches the whole model at every read."""
        if id(attr_val) not in self._names and isinstance(attr_val, Tensor):
            self._find_names()  # forward has replaced a tensor
        if id(attr_val) not in self._names:
            return attr_val
        name, tensor = self._names[id(attr_val)]
        if name not in parameter_proxy_cache:
            proxy = partial(ParameterProxy, self, name=name, param=tensor) if isinstance(tensor, nn.Parameter) else None
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {}, proxy_factory_fn=proxy)
        return parameter_proxy_cache[name]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Reject a context that the graph would not have."""
        if torch.is_grad_enabled() != self._grad_enabled or self.autocast.entered:
            raise ValueError("torch.no_grad or autocast is switched within forward, which torch.fx does not see")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        """Name buffers and constants, for which the base class searches the model; keep the class of mappings."""
        if container(a) is dict and type(a) is not dict:
            return self.create_node("call_function", type(a), (), {key: self.create_arg(v) for key, v in entries(a)})
        if not isinstance(a, Tensor) or isinstance(a, nn.Parameter):
            return super().create_arg(a)
        name = self._names[id(a)][0] if id(a) in self._names else self.tensor_attrs.get(a)
        if name is None:
            name = self.tensor_attrs[a] = self.get_fresh_qualname("_tensor_constant")
            setattr(self.root, name, a)
        return self.create_node("get_attr", name, (), {})

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Create one placeholder, and pass its entries as the arguments of the model."""
        self._find_names()
        args, kwargs = arguments(_entries_of(self.create_proxy("placeholder", "batch", (), {}), self.example))
        forward: Any = CONTAINERS.get(root_fn, root_fn)
        return (lambda root: forward(root, *args, **kwargs)), [self.root]

    def _find_names(self) -> None:
        named = chain(self.root.named_parameters(), self.root.named_buffers())
        self._names = {id(tensor): (name, tensor) for name, tensor in named}


def _entries_of(proxy: Any, example: Any) -> Any:
    """The proxy, taken apart as the example is nested."""
    found = entries(example)
    return rebuild(example, [_entries_of(proxy[key], entry) for key, entry in found]) if found else proxy


def explain(model: nn.Module, error: Exception) -> str:
    """Say in one line which line of forward stopped the trace and what to do."""
    return (
        f"model: {type(model).__name__}.forward cannot be traced{_reason(error)}; "
        f"move that line into a submodule, which is then kept whole, {MANUAL_SPLIT}"
    )


def _reason(error: Exception) -> str:
    """The line of forward that stopped the trace, and why."""
    ours = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{where}: {reason}"
