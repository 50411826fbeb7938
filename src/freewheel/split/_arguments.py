"""Checks of what the user typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from freewheel._errors import unknown
from freewheel.split._trace import BY_HAND, hooked, takes_one_argument
from freewheel.split._undisturbed import call, undisturbed

MEASURES = ("time", "forward", "parameters")
_WRAPPERS = {
    "DataParallel": "its .module",
    "DistributedDataParallel": "its .module",
    "FullyShardedDataParallel": "the module it wraps",
    "OptimizedModule": "the module that was given to torch.compile, and compile the stages",
    "ScriptModule": "the module that was scripted",
}


def check_model(model: Any) -> None:
    """Refuse what is not a plain module with parameters in place."""
    if not isinstance(model, nn.Module):
        way = "give a nn.Module"
        if isinstance(model, Sequence) and not isinstance(model, str):
            way = "a list of stages needs no split: fw.Trainer([stage0, stage1], ...)"
        raise TypeError(f"model must be a nn.Module, not {type(model).__name__}: {way}")
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS:
            raise TypeError(f"model is a {kind.__name__}, which hides its layers: give {_WRAPPERS[kind.__name__]}")
    lazy = next((name for name, p in [*model.named_parameters(), *model.named_buffers()] if is_lazy(p)), None)
    if lazy is not None:
        raise ValueError(f"model: '{lazy}' has no shape yet: call the model once on a batch before splitting it")
    if hooked(model):
        raise ValueError("model has hooks of its own, which no stage would run: remove them or hook its submodules")


def check_plan(k: Any, by: Any, at: Any, balance: Any) -> int:
    """The number of stages; refuse a plan that contradicts itself."""
    if k is not None and (not isinstance(k, int) or isinstance(k, bool)):
        raise TypeError(f"k must be a whole number of stages, not {type(k).__name__} {k!r}")
    if k is not None and k < 1:
        raise ValueError(f"k={k}: a model has at least one stage, give k >= 1")
    if by not in MEASURES:
        raise unknown("by", by, MEASURES)
    if at is not None and balance is not None:
        raise ValueError("at and balance both say where to cut: give one of them")
    given = "at" if at is not None else "balance"
    if at is None and balance is None:
        if k is None:
            raise ValueError("k is missing: say how many stages, as in fw.split(model, 4, example=batch)")
        return k
    if by != "time":
        raise ValueError(f"by={by!r} and {given} both say where to cut: give one of them")
    stages = _check_at(at) + 1 if at is not None else _check_balance(balance)
    if k is not None and k != stages:
        raise ValueError(f"k={k} but {given} makes {stages} stages: leave k out or give k={stages}")
    return stages


def _check_at(at: Any) -> int:
    if isinstance(at, str) or not isinstance(at, Sequence):
        raise TypeError(f"at must be a list of submodule names, not {type(at).__name__}: at=['layer2', 'layer3']")
    for name in at:
        if not isinstance(name, str):
            raise TypeError(f"at must hold names of submodules, not {type(name).__name__} {name!r}")
        if list(at).count(name) > 1:
            raise ValueError(f"at names {name!r} twice: a stage begins there once")
    return len(at)


def _check_balance(balance: Any) -> int:
    if isinstance(balance, str) or not isinstance(balance, Sequence):
        raise TypeError(f"balance must be a list of numbers of units, not {type(balance).__name__}: [3, 4, 2]")
    for count in balance:
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"balance must hold whole numbers, not {type(count).__name__} {count!r}")
        if count < 1:
            raise ValueError(f"balance={list(balance)}: every stage needs at least one unit, {count} is none")
    if not balance:
        raise ValueError("balance is empty: give the number of units of each stage")
    return len(balance)


def check_example(model: nn.Module, example: Any) -> Any:
    """What the model gives for the example; refuse one it cannot be called with."""
    _check_parts(example, "example")
    if isinstance(example, dict) and not all(isinstance(key, str) for key in example):
        raise TypeError("example is a dict, so its keys must be the names of the arguments of forward")
    try:
        with undisturbed(model), torch.no_grad():
            return call(model, example)
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        how = "*example" if isinstance(example, tuple) else "**example" if isinstance(example, dict) else "example"
        raise ValueError(
            f"example: model({how}) failed in training mode with {type(error).__name__}: {line}; "
            "give a batch the model can be trained on"
        ) from error


def _check_parts(value: Any, name: str) -> None:
    if isinstance(value, tuple | list | dict):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_parts(part, f"{name}[{key!r}]")
        if not value:
            raise ValueError(f"{name} is empty: give the tensors the model is called with")
    elif not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor, or a tuple or dict of tensors, not {type(value).__name__}: "
            "give what never changes as a default in forward"
        )


def check_no_example(model: nn.Module, *, timed: str | None) -> None:
    """Refuse to go on without an example where one is needed."""
    if timed:
        raise ValueError(
            f"example is missing: by={timed!r} measures the layers on a batch; give example=batch or by='parameters'"
        )
    if not takes_one_argument(model):
        raise ValueError(
            f"example is missing: {type(model).__name__}.forward takes several arguments; "
            f"give example=(first, second) or example={{'name': first}}, {BY_HAND}"
        )
