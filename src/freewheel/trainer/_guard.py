"""What callbacks may not change: weights, buffers and settings, since batches are under way that began with them.

Weights and buffers are guarded before they are changed::

    a callback does                          it is refused by
    weight.mul_(2), weight.data.zero_()      torch's dispatcher, which says what an operation writes to
    weight.data = x, weight.numpy()[0] = 1   torch's functions, before they are called
    layer.weight = nn.Parameter(x)           torch's hooks for registrations
    optimizer.param_groups[0]["lr"] = 0.1    the groups

All see the thread of the callback alone: the stages go on learning in theirs. A setting of a module, and what an
optimizer has for groups and state, are compared afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registrations
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatching

from freewheel._trees import tensors_of
from freewheel.stage import Group, Stage, StandIns, make_watchable, noted_stand_ins, watched_groups, without_loss
from freewheel.trainer._settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
_SET_DATA = torch.Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
_TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)


class Guard:
    """Refuses changes of a network by functions that are called while it is trained.

    When such a change would come to a stage depends on timing, and one in another process would never see it.

    Args:
        network: The whole network.
        stages: The stages, before they are trained.
        loss: The loss.
        enabled: Whether there is anything to guard against.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> with torch.no_grad(), Guard(layer, []).tensors("a callback"):
        ...     layer.weight.clamp_(-1, 1)
        Traceback (most recent call last):
            ...
        ValueError: a callback would change model.weight while batches are under way, and was stopped before it ...
    """

    def __init__(self, network: nn.Module, stages: Sequence[Stage], loss: Any = None, *, enabled: bool = True) -> None:
        self._stages = stages
        modules = [without_loss(stage.module) for stage in stages]
        self._settings = Settings(network, modules, loss) if enabled else None
        self._optimizers = {f"stages[{s.index}]": s.optimizer for s in stages if enabled and s.optimizer is not None}
        for optimizer in self._optimizers.values():
            make_watchable(optimizer)

    @contextmanager
    def callbacks(self) -> Iterator[None]:
        """Refuse any change by callbacks inside the context."""
        with self._settings.untouched() if self._settings else nullcontext(), self.tensors("a callback"):
            parts = [(where, optimizer, _parts_of(optimizer)) for where, optimizer in self._optimizers.items()]
            yield
            for where, optimizer, before in parts:
                if list(map(id, _parts_of(optimizer))) != list(map(id, before)):
                    raise ValueError(
                        f"a callback has changed the groups or the state of the optimizer of {where} while batches are "
                        "under way: change them between two calls of fit"
                    )

    def guarded(self, function: Callable[P, T], who: str) -> Callable[P, T]:
        """Return a function that may not change weights and buffers."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.tensors(who):
                return function(*args, **kwargs)

        return call

    @contextmanager
    def tensors(self, who: str) -> Iterator[None]:
        """Refuse changes of weights and buffers inside the context, in this thread."""
        if self._settings is None:
            yield
            return
        with ExitStack() as stack:
            found = stack.enter_context(noted_stand_ins())
            call = _Call(who, partial(self._tensors, self._settings, found), partial(self._modules, self._settings))
            try:
                with ExitStack() as watching:
                    call.watch_registrations(watching)
                    watching.enter_context(watched_groups(partial(self._see, call)))
                    watching.enter_context(_Functions(call))
                    watching.enter_context(_writes_seen_by(call))
                    yield
            except Exception:
                if call.refusal is None:
                    raise
        if call.refusal is not None:  # also where it was caught, as `load_state_dict` does
            raise call.refusal

    def _see(self, call: _Call, group: Group, setting: str) -> None:
        for where, optimizer in self._optimizers.items():
            if any(group is own for own in optimizer.param_groups):
                call.refuse(f"{setting} of the optimizer of {where}")

    def _modules(self, settings: Settings) -> dict[nn.Module, str]:
        found = {module: name for name, module, _ in settings.modules}
        for stage in self._stages:
            if stage.head is not None:
                found |= {module: name for name, module in stage.head.named_modules(prefix=f"heads[{stage.index}]")}
        return found

    def _tensors(self, settings: Settings, found: Sequence[StandIns]) -> Iterator[tuple[str, Tensor]]:
        """Weights, what modules hold just now, and what stands in for it or has done so, by name."""
        names: dict[int, str] = {}
        for name, tensor in (*settings.parameters, *self._held(settings), *self._of_optimizers()):
            if isinstance(tensor, Tensor):
                names.setdefault(id(tensor), name)
                yield name, tensor
        for tensors, originals in [*found, *(each for stage in self._stages for each in stage.weights.stand_ins())]:
            for tensor, original in zip(tensors, originals):
                if id(original) in names:  # a callback may train another network
                    yield names[id(original)], tensor

    def _of_optimizers(self) -> Iterator[tuple[str, Any]]:
        for where, optimizer in self._optimizers.items():
            for values in (*list(optimizer.state.values()), *optimizer.param_groups):
                yield from ((f"{key} of the optimizer of {where}", value) for key, value in list(values.items()))

    def _held(self, settings: Settings) -> Iterator[tuple[str, Any]]:
        for module, name in self._modules(settings).items():
            for key, tensor in (*module._parameters.items(), *module._buffers.items()):
                yield f"{name}.{key}", tensor
        yield from settings.tensors()


class _Call:
    """One call of a callback.

    Args:
        who: What is called.
        tensors: Returns the tensors that it may not write to, by name.
        modules: Returns the modules that it may not register anything in, with their names.
    """

    def __init__(
        self, who: str, tensors: Callable[[], Iterator[tuple[str, Tensor]]], modules: Callable[[], dict[nn.Module, str]]
    ) -> None:
        self._who, self._tensors, self._modules = who, tensors, modules
        self._thread = threading.get_ident()
        self._sizes: set[int] | None = None  # in bytes, of the memory that is watched
        self.refusal: ValueError | None = None

    def refuse(self, name: str) -> None:
        """Refuse a change."""
        self.refusal = self.refusal or ValueError(
            f"{self._who} would change {name} while batches are under way, and was stopped before it did: change it "
            "between two calls of fit"
        )
        raise self.refusal

    def owner(self, tensors: Sequence[Tensor]) -> str:
        """Name the first watched tensor that shares memory with one of these; an empty name if none does."""
        if self._sizes is None:
            watched = [t for _, t in self._tensors()]
            self._sizes = {size for t in watched for size in (_memory_of(t)[1], t.numel() * t.element_size())}
        places = {place for place, size in map(_memory_of, tensors) if place and size in self._sizes}
        if not places:
            return ""
        return next((name for name, t in self._tensors() if _memory_of(t)[0] in places), "")

    def watch_registrations(self, stack: ExitStack) -> None:
        """Refuse new parameters, buffers and modules of watched modules until the stack is left."""

        def see(module: nn.Module, name: str, value: Any) -> None:
            if threading.get_ident() == self._thread and (owner := self._modules().get(module)) is not None:
                self.refuse(f"{owner}.{name}")

        for register in (
            registrations.register_module_parameter_registration_hook,
            registrations.register_module_buffer_registration_hook,
            registrations.register_module_module_registration_hook,
        ):
            stack.callback(register(see).remove)


class _Functions(TorchFunctionMode):
    """Sees functions of tensors that change one without an operation."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA and not _is_same_memory(*args) and (name := self._call.owner(args[:1])):
            self._call.refuse(name)
        result = func(*args, **(kwargs or {}))
        if func in _TO_NUMPY and self._call.owner(args[:1]):
            result.flags.writeable = False
        return result


class _Writes(dispatching.TorchDispatchMode):
    """Sees operations that write to tensors."""

    supports_higher_order_operators = True

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call = call

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code be compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        positions, names = _written_by(func)
        if positions or names:
            written = [args[i] for i in positions if i < len(args)] + [kwargs[n] for n in names if n in kwargs]
            if name := self._call.owner(tensors_of(written)):
                self._call.refuse(name)
        return func(*args, **kwargs)


@contextmanager
def _writes_seen_by(call: _Call) -> Iterator[None]:
    """A context in which writes of this thread are seen.

    The mode's own context would set flags of the whole process, by which torch.compile skips code in other threads.
    """
    dispatching._push_mode(_Writes(call))
    try:
        yield
    finally:
        dispatching._pop_mode()


@cache
def _written_by(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The arguments that an operation writes to: their positions and their names.

    Example:
        >>> _written_by(torch.ops.aten.add_.Tensor), _written_by(torch.ops.aten.add.out)[1]
        (((0,), ('self',)), ('out',))
    """
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    arguments = [] if schema is None else schema.arguments
    found = [(i, each.name) for i, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
    return tuple(i for i, _ in found), tuple(name for _, name in found)


def _parts_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What a callback may not replace."""
    return [optimizer.state, optimizer.param_groups, *optimizer.param_groups]


def _memory_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory begins, and its size in bytes; zeros for a tensor without memory of its own."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse and wrapped tensors
        return 0, 0


def _is_same_memory(tensor: Tensor, other: Tensor) -> bool:
    """Whether a tensor is already what `tensor.data = other` would make it, as for `model.cpu()` on a CPU."""
    alike = tensor.dtype == other.dtype and tensor.shape == other.shape and tensor.stride() == other.stride()
    return alike and tensor.device == other.device and tensor.data_ptr() == other.data_ptr()
