"""Argument checks of `split`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from freewheel._errors import of_type, one_of, whole_number
from freewheel.split._tracer import MANUAL_SPLIT, hooked
from freewheel.split._tree import container, entries
from freewheel.split._undisturbed import arguments, call, raised_by_signal, undisturbed, unpacks

MEASURES = ("time", "forward", "parameters")
_WRAPPERS = {
    "DataParallel": "its .module",
    "DistributedDataParallel": "its .module",
    "FullyShardedDataParallel": "the module it wraps",
    "OptimizedModule": "the module that was passed to torch.compile, and compile the stages",
    "ScriptModule": "the module that was scripted",
}


def check_model(model: Any) -> None:
    """Reject anything but a plain module whose parameters exist."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a nn.Module, not {type(model).__name__}: "
            "a list of stages needs no split: fw.Trainer([stage0, stage1], ...)"
        )
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS:
            raise TypeError(f"model is a {kind.__name__}, which hides its layers: give {_WRAPPERS[kind.__name__]}")
    lazy = next((name for name, p in [*model.named_parameters(), *model.named_buffers()] if is_lazy(p)), None)
    if lazy is not None:
        raise ValueError(f"model: '{lazy}' has no shape yet: call the model once on a batch before splitting it")
    if hooked(model):
        raise ValueError("model has hooks of its own, which no stage would run: remove them or hook its submodules")


def check_plan(k: Any, by: Any, at: Any, balance: Any) -> int:
    """The number of stages; reject contradictory arguments."""
    if k is not None:
        whole_number("k", k, least=1)
    one_of("by", by, MEASURES)
    if at is not None and balance is not None:
        raise ValueError("at and balance both say where to cut: give one of them")
    given = "at" if at is not None else "balance"
    if at is None and balance is None:
        if k is None:
            raise ValueError("k is missing: give the number of stages, as in fw.split(model, 4, example=batch)")
        return k
    if by != "time":
        raise ValueError(f"by={by!r} and {given} both say where to cut: give one of them")
    stages = _check_at(at) + 1 if at is not None else _check_balance(balance)
    if k is not None and k != stages:
        raise ValueError(f"k={k} but {given} makes {stages} stages: leave k out or give k={stages}")
    return stages


def _check_at(at: Any) -> int:
    hint = "give names of submodules, as in at=['layer2', 'layer3']"
    for name in of_type("at", at, (list, tuple), hint):
        of_type("at", name, str, hint)
        if list(at).count(name) > 1:
            raise ValueError(f"at names {name!r} twice: name each submodule once")
    return len(at)


def _check_balance(balance: Any) -> int:
    for i, count in enumerate(of_type("balance", balance, Sequence, "give numbers of units, as in balance=[3, 4, 2]")):
        whole_number(f"balance[{i}]", count, least=1)
    if not balance:
        raise ValueError("balance is empty: give the number of units of each stage")
    return len(balance)


def check_example(model: nn.Module, example: Any) -> Any:
    """The output of the model for the example; reject one it cannot be called with."""
    _check_entries(example, "example")
    try:
        with undisturbed(model), torch.no_grad():
            return call(model, example)
    except Exception as error:
        if raised_by_signal(error):
            raise
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        stars = "**" if arguments(example)[1] else "*" if unpacks(example) else ""
        raise ValueError(
            f"example: model({stars}example) failed in training mode with {type(error).__name__}: {line}; "
            "give a batch the model can be trained on"
        ) from error


def _check_entries(value: Any, name: str) -> None:
    if container(value) is None and not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor, or a tuple or dict of tensors, not {type(value).__name__}: "
            "make what never changes a default in forward"
        )
    if container(value) and not value:
        raise ValueError(f"{name} is empty: give the tensors the model is called with")
    for key, entry in entries(value):
        _check_entries(entry, f"{name}[{key!r}]")


def check_no_example(model: nn.Module, *, timed: str | None) -> None:
    """Reject a missing example where one is needed."""
    if timed:
        raise ValueError(
            f"example is missing: by={timed!r} measures the layers on a batch; give example=batch or by='parameters'"
        )
    try:
        inspect.signature(model.forward).bind(object())
    except TypeError:
        raise ValueError(
            f"example is missing: {type(model).__name__}.forward takes several arguments; "
            f"give example=(first, second) or example={{'name': first}}, {MANUAL_SPLIT}"
        ) from None
