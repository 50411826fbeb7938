"""The dual pass: a module run as it is, on tensors that carry tangents.

Inside `DualMode` every torch function is seen before it runs. A parameter among its arguments gets its tangent there
and then, and loses it when the function returns: however deep the module, about one layer's tangents are held. What
torch can differentiate forwards it does by itself; some functions have a faster way here, or the only one (`RULES`).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from freewheel.tangents._compiled import Given
from freewheel.tangents._directions import TangentSource
from freewheel.tangents._level import dual
from freewheel.tangents._rules import RULES

# What only looks at a tensor, or means its value alone, needs no tangent.
_LOOKS = {
    *(Tensor.__len__, Tensor.dim, Tensor.ndimension, Tensor.size, Tensor.stride, Tensor.numel, Tensor.nelement),
    *(Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous, Tensor.get_device, Tensor.element_size),
    *(Tensor.detach, Tensor.detach_, Tensor.requires_grad_, Tensor.storage_offset, Tensor.untyped_storage),
}
_VIEWS = {"T", "mT", "H", "mH", "real", "imag"}  # attributes of a tensor that are tensors computed from it


class DualMode(TorchFunctionMode):
    """Inside, the parameters of a stage carry tangents wherever they are used.

    Where the module itself turns gradients off (`torch.no_grad`), tangents stop too.
    """

    def __init__(self, source: TangentSource | Given, before: dict[Any, Callable[..., Any]]) -> None:
        """`before` holds functions that are asked first, parameters still without tangents; see `Mover`."""
        super().__init__()
        self._source = source
        self._before = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in _LOOKS or (name == "__get__" and func.__self__.__name__ not in _VIEWS):
            return func(*args, **kwargs)
        lifting = torch.is_grad_enabled()
        if lifting and func in self._before:
            out = self._before[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        change = self._lift if lifting else self._value
        args = [change(a) for a in args]
        kwargs = {k: change(v) for k, v in kwargs.items()}
        rule = RULES.get(func)
        out = func(*args, **kwargs) if rule is None else rule(*args, **kwargs)
        if isinstance(func, (OpOverload, OpOverloadPacket)):
            _check_custom(func, args, out)
        return out

    def _lift(self, value: Any) -> Any:
        """A parameter with its tangent, if it has one, otherwise its value."""
        if isinstance(value, Tensor):
            index = self._source.index_of(value)
            if index is None:
                return value
            tangent = self._source.tangent(index)
            return value.detach() if tangent is None else dual(value.detach(), tangent)
        if type(value) in (list, tuple):
            return type(value)([self._lift(v) for v in value])
        return value

    def _value(self, value: Any) -> Any:
        """What there is without tangents."""
        if isinstance(value, Tensor):
            return unpack_dual(value).primal
        if type(value) in (list, tuple):
            return type(value)([self._value(v) for v in value])
        return value


def _check_custom(op: OpOverload | OpOverloadPacket, args: Any, out: Any) -> None:
    """Refuses an operation of the user's own that drops tangents: torch would do so without a word."""
    if str(op).startswith(("aten.", "prims.")):
        return
    given, made = ([t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in (args, out))
    moved = any(unpack_dual(t).tangent is not None for t in given)
    if moved and any(t.is_floating_point() and unpack_dual(t).tangent is None for t in made):
        raise NotImplementedError(_missing(str(op)))


def explained(error: Exception) -> Exception:
    """One line about an operation that cannot be differentiated forwards; any other error as it is."""
    text = str(error)
    if "jvp function for custom autograd.Function" in text:
        calls = [frame.f_locals.get("cls") for frame, _ in traceback.walk_tb(error.__traceback__)]
        names = [cls.__name__ for cls in calls if isinstance(cls, type) and issubclass(cls, torch.autograd.Function)]
        return NotImplementedError(_missing(names[-1] if names else "a custom autograd.Function"))
    found = re.search(r"forward AD with (\S+) that does not support it", text)
    return NotImplementedError(_missing(found[1])) if found else error


def _missing(name: str) -> str:
    return (
        f"{name} has no forward derivative: replace it, write it with simpler operations (an autograd.Function needs a "
        "jvp), or train with a method of chain credit such as 'pipedream'"
    )
