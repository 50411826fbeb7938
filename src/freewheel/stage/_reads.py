"""What a function reads besides its arguments: its closure, its defaults, and global variables."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from dis import get_instructions
from inspect import getsource, unwrap
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from torch import nn

from freewheel._plain import is_plain

_LIBRARIES = ("torch", "numpy", "freewheel", "builtins")
_SIMPLE = (list, tuple, dict, set, SimpleNamespace, Namespace)


def read_by(function: FunctionType) -> dict[str, Any]:
    """Return what a function's code reads by name: plain values, containers, and functions of the same file.

    Example:
        >>> scale = 3
        >>> def make(shift):
        ...     return lambda x: x * scale + shift
        >>> read_by(make(2))
        {'shift': 2, 'scale': 3}
    """
    names = set(_names(function.__code__))
    found = dict(_closure(function))
    found |= {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
    found |= {f"default {name}": value for name, value in (function.__kwdefaults__ or {}).items()}
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, (ModuleType, type)):
            found |= {f"{name}.{key}": each for key, each in _plain_of(value) if key in names}
        elif _is_simple(value) or getattr(value, "__module__", None) == function.__module__:
            found[name] = value
    return found


def constants_of(kind: type) -> dict[str, Any]:
    """Return the plain values of a class and its bases that its forward names, and what else that reads; none of torch.

    Example:
        >>> class Layer:
        ...     __module__, scale, unused = "net", 2, 3
        ...     def forward(self, x):
        ...         return self.scaled(x)
        ...     def scaled(self, x):
        ...         return self.scale * x
        >>> constants_of(Layer)
        {'scale': 2}
    """
    kinds = [each for each in reversed(kind.__mro__) if not of_library(each)]
    reached, functions = _reached(kinds)
    found = {f"{key} of {name}": v for name, each in functions for key, v in read_by(each).items()}
    return {key: value for each in kinds for key, value in _plain_of(each) if key in reached} | found


class NamesInForward(NamedTuple):
    """The names that the forward of a class uses, in it or in its methods.

    Args:
        used: Names of attributes, methods and functions.
        own: Attributes that it assigns to, of the module itself.
        others: Attributes that it assigns to, of other objects.
    """

    used: set[str]
    own: set[str]
    others: set[str]


def names_in_forward(kind: type[nn.Module]) -> NamesInForward:
    """Return the names that the forward of a class uses, and those of attributes that it assigns to.

    Example:
        >>> class Layer(nn.Module):
        ...     def forward(self, x):
        ...         self.calls += 1
        ...         self.dropout.p = 0.1
        ...         return self.scaled(x)
        ...     def scaled(self, x):
        ...         return self.scale * x
        >>> names = names_in_forward(Layer)
        >>> sorted(names.used - names.own - names.others), names.own, names.others
        (['dropout', 'scale', 'scaled'], {'calls'}, {'p'})
    """
    reached, functions = _reached([each for each in kind.__mro__ if each not in nn.Module.__mro__])
    own, others = set[str](), set[str]()
    for _, function in functions:
        on_first, elsewhere = _assigned_by(function)
        own |= on_first
        others |= elsewhere
    return NamesInForward(reached - {"forward", "__call__"}, own, others)


def _assigned_by(function: FunctionType) -> tuple[set[str], set[str]]:
    """The attributes that a function assigns to, of its first argument and of others; of any, without its source."""
    codes = list(_codes(function.__code__))
    stored = {each.argval for code in codes for each in get_instructions(code) if each.opname == "STORE_ATTR"}
    if not stored:
        return set(), set()
    try:
        tree = ast.parse(dedent(getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return set(), stored
    own, others = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            on_first = isinstance(node.value, ast.Name) and node.value.id in function.__code__.co_varnames[:1]
            (own if on_first else others).add(node.attr)
    return own, others | (stored - own)


def _reached(kinds: Sequence[type]) -> tuple[set[str], list[tuple[str, FunctionType]]]:
    """The names that the forward of these classes uses, in it or in their methods, and these functions."""
    methods: dict[str, list[FunctionType]] = {}
    for each in kinds:
        for name, function in ((name, _function(value)) for name, value in vars(each).items()):
            if function is not None:
                methods.setdefault(name, []).append(function)
    reached, functions, pending = set[str](), list[tuple[str, FunctionType]](), ["forward", "__call__"]
    while pending:
        name = pending.pop()
        for function in methods.pop(name, ()):
            pending += sorted(set(_names(function.__code__)))
            functions.append((name, function))
        reached.add(name)
    return reached, functions


def attributes_of(value: Any) -> Iterator[dict[str, Any]]:
    """The attributes of an object, in its dict and in slots."""
    if isinstance(getattr(value, "__dict__", None), dict):
        yield value.__dict__
    names = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
    if names:
        yield {name: getattr(value, name) for name in names if hasattr(value, name)}


def of_library(holder: Any) -> bool:
    """Whether a class, a function or a module is part of torch, NumPy or Freewheel."""
    name = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
    return (name or "").partition(".")[0] in _LIBRARIES


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _names(code: CodeType) -> Iterator[str]:
    return (name for each in _codes(code) for name in each.co_names)


def _closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _plain_of(holder: type | ModuleType) -> Iterable[tuple[str, Any]]:
    if of_library(holder):
        return []
    return [(key, v) for key, v in vars(holder).items() if is_plain(v) and not key.startswith("__")]


def _is_simple(value: Any) -> bool:
    return is_plain(value) or isinstance(value, _SIMPLE) or (is_dataclass(value) and not isinstance(value, type))


def _function(method: Any) -> FunctionType | None:
    """Return the function of a method, a property, a static method or a decorated one."""
    method = getattr(method, "fget", method)
    method = getattr(method, "__func__", method)
    method = unwrap(method) if isinstance(method, Callable) else method
    return method if isinstance(method, FunctionType) else None


def _slots_of(kind: type) -> Iterable[str]:
    slots = () if of_library(kind) else vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else slots
