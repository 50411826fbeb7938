"""What the modules of a stage hold while they are compiled: tensors and settings, which must not change then."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from freewheel._plain import PLAIN, is_plain, is_same
from freewheel.stage._loss import as_module
from freewheel.stage._settings import Contents, changed_setting, settings_of
from freewheel.stage._slots import Slot, computed_by_hooks, fill, tensor_slots

_CACHES = ("_flat_weights", "_flat_weight_refs")  # of `nn.RNNBase`
CHANGED = (
    "{changed} of stages[{stage}] has changed during a fit, which compiled code does not see: call fit once for each "
    "setting, or leave compile out"
)


class Holders(NamedTuple):
    """What a function computes with.

    Args:
        modules: Its modules, each with what its name begins with.
        others: Dicts of other tensors.
        loss: Its loss. Stages may share it, so that only its settings are looked at.
    """

    modules: dict[str, nn.Module]
    others: Sequence[dict[Any, Tensor]] = ()
    loss: Any = None


class ChangedError(ValueError):
    """A module has changed what it holds."""


class Held:
    """What modules hold: tensors, which are arguments of compiled code, and settings, which are constants of it.

    Args:
        holders: The modules, and what else holds something.
        stage: The number of their stage.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> before = Held(Holders({"": layer}), 0).form()
        >>> layer.p = 0.3
        >>> Held(Holders({"": layer}), 0).form() == before
        False
    """

    def __init__(self, holders: Holders, stage: int) -> None:
        self._modules = [pair for prefix, root in holders.modules.items() for pair in root.named_modules(prefix=prefix)]
        known, loss = {id(module) for _, module in self._modules}, as_module(holders.loss)
        self._losses = [pair for pair in loss.named_modules(prefix="loss") if id(pair[1]) not in known]
        self._stage = stage
        more: list[list[Slot]] = [[(tensors, key)] for tensors in holders.others for key in tensors]
        self._slots = [*tensor_slots(module for _, module in self._modules), *more]

    def form(self) -> Any:
        """Return what compiled code depends on."""
        forms = tuple(form_of(t) for t in self.tensors())
        kinds = tuple(type(module) for _, module in self._modules)
        return forms, kinds, tuple(self.settings().items())

    @property
    def _all(self) -> list[tuple[str, nn.Module]]:
        """All modules by name, those of the loss last."""
        return [*self._modules, *self._losses]

    def settings(self) -> dict[str, Any]:
        """Return what is a constant of compiled code, by name."""
        found = {name: _constant_of(value) for name, value in settings_of(self._all, (object,), code=True).items()}
        return {name: value for name, value in found.items() if value is not None}

    def check_same(self, before: dict[str, Any]) -> None:
        """Reject settings that are not as they were."""
        after = self.settings()
        changed = next((name for name in [*before, *after] if before.get(name) != after.get(name)), None)
        if changed is not None:
            raise ChangedError(CHANGED.format(changed=changed, stage=self._stage))

    def tensors(self) -> list[Tensor]:
        """Return the tensors that the modules hold now."""
        return [holder[key] for (holder, key), *_ in self._slots]

    @contextmanager
    def replaced(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Let the modules hold these tensors inside the context, and refuse other changes to what they hold."""
        held = self.tensors()
        with self.put_back():
            fill(self._slots, tensors)
            try:
                with self.unchanged():
                    yield
            finally:
                fill(self._slots, held)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Undo changes to what the modules hold; those to the values of tensors remain."""
        contents = Contents(self._all)
        try:
            yield
        finally:
            contents.put_back()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Undo and refuse changes to what the modules hold, other than to the values of tensors."""
        before, tensors = [dict(vars(module)) for _, module in self._all], self.tensors()
        settings = settings_of(self._all, code=True)
        with self.put_back():
            yield
            changed = self._set_attribute(before) or changed_setting(settings, settings_of(self._all, code=True))
            changed = changed or self._other_tensor(tensors)
            if changed:
                raise ChangedError(
                    f"{changed} of stages[{self._stage}] changes in forward, which compiled code would do only once: "
                    "make it a buffer and change that in place, or leave compile out"
                )

    def _set_attribute(self, before: Sequence[dict[str, Any]]) -> str:
        """Name an attribute that is not as it was."""
        for (name, module), old in zip(self._all, before):
            unread = {*_CACHES, *computed_by_hooks(module)}
            for key, value in vars(module).items():
                if value is not old.get(key) and key not in unread and not _constant(value, old.get(key)):
                    return _dotted(name, key)
        return ""

    def _other_tensor(self, tensors: Sequence[Tensor]) -> str:
        """Name a buffer, or a tensor in a list or dict, that is another one than it was."""
        homes = {id(values): _dotted(name, key) for name, m in self._modules for key, values in vars(m).items()}
        names = {id(values): name for name, m in self._modules for values in (vars(m), m._parameters, m._buffers)}
        for places, tensor in zip(self._slots, tensors):
            for holder, key in places:
                if key not in _CACHES and (holder.get(key) if isinstance(holder, dict) else holder[key]) is not tensor:
                    return _dotted(names[id(holder)], key) if id(holder) in names else homes.get(id(holder), str(key))
        return ""


def _dotted(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what compiled code depends on."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _constant(value: Any, before: Any) -> bool:
    """Whether the value of an attribute says nothing about earlier calls."""
    if isinstance(before, Tensor):
        return before.grad_fn is not None  # every forward computes it
    return type(value) in PLAIN and is_same(value, before)


def _constant_of(value: Any) -> Hashable | None:
    """Return what tells a value from others; None for what is looked into, and for tensors and modules."""
    if is_plain(value):
        return repr(value)
    if isinstance(value, (FunctionType, type)):
        return value
    if isinstance(value, (Tensor, nn.Module)) or hasattr(value, "__dict__") or hasattr(value, "__slots__"):
        return None
    if hasattr(value, "tobytes"):  # of NumPy
        return type(value), getattr(value, "shape", ()), str(getattr(value, "dtype", "")), value.tobytes()
    return value if isinstance(value, Hashable) and not isinstance(value, (tuple, frozenset)) else None
