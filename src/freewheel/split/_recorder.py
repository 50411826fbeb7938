"""Record the calls of a model's forward while it runs on an example, where ``torch.fx`` cannot trace it.

Everything is real, so forward may check shapes, ask for types and build masks as it likes. Each call of a torch
function is a node, and so is each call of a submodule without a list of blocks in it, such as one block of a
transformer: those run their own forward in the stages. Sizes stay symbolic, see `RecordedInt`. What depends on the
values of the input cannot be recorded: the submodule in which it happens is kept whole, or the model refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from freewheel.split._blocks import has_blocks
from freewheel.split._intercept import Applied, intercepted
from freewheel.split._sizes import SIZE_FUNCTIONS, RecordedInt
from freewheel.split._tracer import hooked
from freewheel.split._tree import container, entries, holds_tensor, rebuild, tensors
from freewheel.split._undisturbed import AutocastWatch, arguments

# What only looks at a tensor: the same for every batch, or for every batch of the same size.
_LOOKS = {
    "dim", "ndimension", "is_floating_point", "is_complex", "is_contiguous", "is_signed", "stride", "element_size",
    "get_device", "storage_offset", "__len__", "data_ptr", "is_tensor", "is_storage", "result_type", "can_cast",
    "__hash__", "__repr__", "is_inference", "is_pinned", "type", "__format__", "untyped_storage",
}  # fmt: skip
_VIEWS = {"T", "mT", "H", "mH", "real", "imag", "data"}
_READS = {getattr, "size", "numel", "nelement", *SIZE_FUNCTIONS, operator.getitem}  # nothing is lost without them
_PLAIN = (int, float, complex, bool, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)


class UnrecordableError(ValueError):
    """What forward does cannot be recorded."""


class Recorder(TorchFunctionMode):
    """Records what a model computes.

    Args:
        model: The model.
        whole: The submodules to record as single calls; those in which something cannot be recorded are added.
    """

    def __init__(self, model: nn.Module, whole: Iterable[str]) -> None:
        super().__init__()
        self.model, self.graph = model, fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self.failed: dict[str, str] = {}
        self._whole = set(whole)
        self._paths = {module: path for path, module in model.named_modules()}
        self._names = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
        self._known: dict[int, tuple[Tensor, fx.Node, tuple[Any, ...]]] = {}  # by id: the node, and the way into it
        self._stack: dict[str, tuple[str, type]] = {}
        self._paused = False
        self._device: tuple[torch.device, fx.Node] | None = None  # the last that was read, and of which tensor
        self._autocast = AutocastWatch()

    def record(self, example: Any) -> fx.Graph:
        """Run the model and return its graph."""
        batch = self._node("placeholder", "batch")
        self._learn(example, batch)
        args, kwargs = arguments(example)
        with ExitStack() as stack:
            stack.enter_context(intercepted(self._called, self._applied))
            stack.enter_context(self._autocast)
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self)
            out = self.model.forward(*args, **kwargs)
        self.graph.output(self._result(out))
        for node in reversed(self.graph.nodes):
            if not node.users and node.target in _READS:
                self.graph.erase_node(node)
        return self.graph

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _called(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        path = self._paths.get(module)
        if self._paused or not path:
            return original(module, *args, **kwargs)
        return self._module(path, module, original, args, kwargs)

    def _applied(self, original: Any, kind: type[Function], args: Any, kwargs: Any) -> Any:
        if self._paused:
            return original(*args, **kwargs)
        return self._run("call_function", Applied(kind), original, args, kwargs)

    def _module(self, path: str, module: nn.Module, original: Any, args: Any, kwargs: Any) -> Any:
        depth = len(self._stack)
        self._stack[f"{path}@{len(self.graph.nodes)}"] = path, type(module)
        try:
            if path in self._whole or hooked(module) or not (has_blocks(module) or type(module) is nn.Sequential):
                return self._run("call_module", path, lambda *a, **k: original(module, *a, **k), args, kwargs)
            try:
                return original(module, *args, **kwargs)
            except UnrecordableError as error:
                self.failed[path] = f"its forward cannot be recorded: {error}"
                self._whole.add(path)
                return self._run("call_module", path, lambda *a, **k: original(module, *a, **k), args, kwargs)
        finally:
            while len(self._stack) > depth:
                self._stack.popitem()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._paused or name in _LOOKS:
            return func(*args, **kwargs)
        recorded = self._recorded((args, kwargs))
        if name == "__get__":
            return self._attribute(func, args) if recorded else func(*args)
        if not recorded:
            state = torch.get_rng_state()
            out = func(*args, **kwargs)
            if torch.equal(state, torch.get_rng_state()):
                return out  # a constant
            torch.set_rng_state(state)
        if name == "__bool__" and (certain := self._certain(args[0])) is not None:
            return certain
        if name in ("size", "numel", "nelement") and self._symbolic(args[0]):
            return self._sizes(func(*args, **kwargs), self._node("call_method", name, args, kwargs))
        if name == "__getitem__":
            return self._run("call_function", operator.getitem, func, args, kwargs)
        if name == "__setitem__":
            return self._run("call_function", operator.setitem, func, args, kwargs)
        if isinstance(args[0] if args else None, Tensor) and getattr(Tensor, name, None) is func:
            return self._run("call_method", name, func, args, kwargs)
        return self._run("call_function", func, func, args, kwargs)

    def _certain(self, tensor: Tensor) -> bool | None:
        """Whether a random number is below or above a limit, if that holds for each: layers that are never dropped."""
        node = self._tensor(tensor)
        compare: Any = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}.get(
            str(node.target)
        )
        drawn, limit = next(iter(node.all_input_nodes), node), node.args[-1] if node.args else None
        if compare is None or drawn.target is not torch.rand or isinstance(limit, fx.Node):
            return None
        if compare(0.0, limit) != compare(1 - 2**-24, limit):
            return None
        self.graph.erase_node(node)
        if not drawn.users:
            self.graph.erase_node(drawn)
        return compare(0.0, limit)

    def _attribute(self, func: Any, args: Any) -> Any:
        name = func.__self__.__name__
        value = func(*args)
        if name == "shape" and self._symbolic(args[0]):
            return self._sizes(value, self._node("call_function", getattr, (args[0], name)))
        if name == "device":
            self._device = value, self._tensor(args[0])
        if name in _VIEWS:
            self._learn(value, self._node("call_function", getattr, (args[0], name)))
        return value

    def _run(self, op: str, target: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a call and record it."""
        if self._autocast.entered:
            raise UnrecordableError(f"'{self._title(target)}' is called under autocast")
        node = self._node(op, target, args, kwargs)
        versions = [t._version for t in tensors([args, list(kwargs.values())])]
        paused, self._paused = self._paused, True
        try:
            out = function(*args, **kwargs)
        finally:
            self._paused = paused
        edited = versions != [t._version for t in tensors([args, list(kwargs.values())])]
        if not holds_tensor(out) and out is not None and op != "call_module":
            raise UnrecordableError(f"'{self._title(target)}' reads the values of a tensor")
        if not torch.is_grad_enabled() and holds_tensor(out) and not edited:
            self._learn_detached(out, node)
        else:
            self._learn(out, node, edited=edited)
        return out

    def _title(self, target: Any) -> str:
        return target if isinstance(target, str) else getattr(target, "__name__", str(target))

    # -- values --------------------------------------------------------------------------------------------------------

    def _learn(self, value: Any, node: fx.Node, path: tuple[Any, ...] = (), *, edited: bool = True) -> None:
        """Remember which node the tensors of a value come from."""
        if isinstance(value, Tensor) and (edited or id(value) not in self._names):
            self._known[id(value)] = value, node, path
        for key, entry in entries(value):
            self._learn(entry, node, (*path, key), edited=edited)

    def _learn_detached(self, value: Any, node: fx.Node, path: tuple[Any, ...] = ()) -> None:
        """Remember tensors that were computed under `torch.no_grad`."""
        if isinstance(value, Tensor):
            self._learn(value, node, path, edited=False)
            self._learn(value, self._node("call_method", "detach", (value,)), edited=False)
        for key, entry in entries(value):
            self._learn_detached(entry, node, (*path, key))

    def _recorded(self, values: Any) -> bool:
        """Whether any of these comes from a node, or is a parameter or buffer."""
        if isinstance(values, Tensor):
            return id(values) in self._known or id(values) in self._names
        if isinstance(values, slice):
            return self._recorded((values.start, values.stop, values.step))
        return isinstance(values, RecordedInt) or any(self._recorded(entry) for _, entry in entries(values))

    def _symbolic(self, tensor: Any) -> bool:
        """Whether the sizes of a tensor may depend on the batch."""
        return isinstance(tensor, Tensor) and id(tensor) in self._known

    def _sizes(self, value: Any, node: fx.Node) -> Any:
        if type(value) is not torch.Size:
            return RecordedInt.of(value, node)
        items = [RecordedInt.of(v, self.graph.call_function(operator.getitem, (node, i))) for i, v in enumerate(value)]
        return torch.Size(items)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, op: str, target: Any, args: Any = (), kwargs: Any = None) -> fx.Node:
        node = self.graph.create_node(op, target, self._argument(tuple(args)), self._argument(dict(kwargs or {})))
        node.meta["nn_module_stack"] = dict(self._stack)
        return node

    def _argument(self, value: Any) -> Any:
        """The value as an argument in the graph."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, RecordedInt):
            return value.node
        if self._device is not None and value == self._device[0]:
            return self.graph.call_function(getattr, (self._device[1], "device"))
        if isinstance(value, slice):
            return slice(*(self._argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, torch.Size):
            return tuple(self._argument(v) for v in value)
        if container(value) and type(value) in (tuple, list, dict):
            return rebuild(value, [self._argument(entry) for _, entry in entries(value)])
        if value is None or value is Ellipsis or isinstance(value, _PLAIN):
            return value
        raise UnrecordableError(f"a {type(value).__name__} is passed on, which is neither a tensor nor a number")

    def _tensor(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self._known:
            _, node, path = self._known[id(tensor)]
            for key in path:
                node = self.graph.call_function(operator.getitem, (node, key))
                node.meta["nn_module_stack"] = dict(self._stack)
            self._known[id(tensor)] = tensor, node, ()
            return node
        if id(tensor) in self._names:
            return self._get(self._names[id(tensor)])
        if tensor.requires_grad:
            raise UnrecordableError(
                "a tensor is computed outside of torch's functions, such as by an autograd.Function"
            )
        name = f"_recorded_constant{len(self.constants)}"
        self.constants[name] = tensor.detach()
        self._known[id(tensor)] = tensor, self._get(name), ()
        return self._known[id(tensor)][1]

    def _get(self, name: str) -> fx.Node:
        node = self.graph.create_node("get_attr", name)
        node.meta["nn_module_stack"] = dict(self._stack)
        return node

    def _result(self, value: Any) -> Any:
        """The output; that of a class of its own is put together by it."""
        if container(value) is dict and type(value) is not dict:
            made = {key: self._result(entry) for key, entry in entries(value)}
            return self.graph.call_function(type(value), (), made)
        if container(value):
            return rebuild(value, [self._result(entry) for _, entry in entries(value)])
        return self._argument(value)
