"""The dual pass: an unmodified module, run on tensors that carry tangents.

`DualMode` intercepts every torch function. A parameter among its arguments gets its tangent for the duration of the
call, so only about one layer's tangents are in memory. torch differentiates most functions; `RULES` has faster versions
of some, and versions of those that torch cannot differentiate forwards.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from freewheel._trees import differentiable
from freewheel.stage import tensors_among
from freewheel.tangents._compiled import FixedTangents
from freewheel.tangents._directions import TangentSource
from freewheel.tangents._level import dual
from freewheel.tangents._rules import RULES

# Functions that only inspect a tensor or use its value need no tangent.
_LOOKS = {
    *(Tensor.__len__, Tensor.dim, Tensor.ndimension, Tensor.size, Tensor.stride, Tensor.numel, Tensor.nelement),
    *(Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous, Tensor.get_device, Tensor.element_size),
    *(Tensor.detach, Tensor.detach_, Tensor.requires_grad_, Tensor.storage_offset, Tensor.untyped_storage),
}
_VIEWS = {"T", "mT", "H", "mH", "real", "imag"}  # attributes of a tensor that are tensors computed from it


class DualMode(TorchFunctionMode):
    """A mode in which the parameters of a stage carry tangents wherever they are used, except under `torch.no_grad`.

    Args:
        source: The tangents.
        before: Functions tried first, on parameters without tangents; see `Perturber`.
        rules: Versions of functions with a derivative of their own.
    """

    def __init__(
        self,
        source: TangentSource | FixedTangents,
        before: Mapping[Any, Callable[..., Any]],
        rules: Mapping[Any, Callable[..., Any]] = RULES,
    ) -> None:
        super().__init__()
        self._source = source
        self._before, self._rules = before, rules

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
        change = self._lift if lifting else _primal
        args = [_map_tensors(change, a) for a in args]
        kwargs = {k: _map_tensors(change, v) for k, v in kwargs.items()}
        rule = self._rules.get(func)
        out = func(*args, **kwargs) if rule is None else rule(*args, **kwargs)
        if isinstance(func, (OpOverload, OpOverloadPacket)):
            _check_custom(func, args, out)
        return out

    def _lift(self, tensor: Tensor) -> Tensor:
        """Return a parameter, detached, with its tangent if it has one; any other tensor unchanged."""
        index = self._source.index_of(tensor)
        if index is None:
            return tensor
        tangent = self._source.tangent(index)
        return tensor.detach() if tangent is None else dual(tensor.detach(), tangent)


def _primal(tensor: Tensor) -> Tensor:
    return unpack_dual(tensor).primal


def _map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the tensors of an argument."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)([_map_tensors(change, v) for v in value])
    return value


def _check_custom(op: OpOverload | OpOverloadPacket, args: Any, out: Any) -> None:
    """Reject a custom operation that silently drops tangents."""
    if str(op).startswith(("aten.", "prims.")):
        return
    dual_input = any(unpack_dual(t).tangent is not None for t in tensors_among(tree_leaves(args)))
    outputs = [t for t in tensors_among(tree_leaves(out)) if differentiable(t)]
    if dual_input and any(unpack_dual(t).tangent is None for t in outputs):
        raise NotImplementedError(_missing(str(op)))


def explained(error: Exception) -> Exception:
    """Return a one-line error for an operation without a forward derivative; any other error unchanged."""
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
