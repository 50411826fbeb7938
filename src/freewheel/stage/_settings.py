"""The settings of modules: the plain values that they, their lists, dicts and objects hold or their code names."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph

from freewheel._plain import is_plain, is_same
from freewheel.stage._reads import attributes_of, constants_of, of_library, read_by

# What `nn.Module` itself keeps in its attributes, other than hooks.
_OF_TORCH = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_flat_weights", "_flat_weight_refs")
_DEPTH = 3  # of the attributes of attributes that are looked at
_WIDTH = 1000  # of the items of a list that are looked at
_DICTS = (dict, OrderedDict, defaultdict, Counter)

Modules = Iterable[tuple[str, nn.Module]]


def settings_of(modules: Modules, kinds: tuple[type, ...] = (), *, code: bool = False) -> dict[str, Any]:
    """Return the plain values, those of other kinds, and the lengths of lists, by name.

    With `code`, also what classes hold, and what the code of methods and functions names.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> layer.seen = [3]
        >>> found = settings_of([("drop", layer)])
        >>> found["drop.p"], found["drop.seen.0"], found["the length of drop.seen"]
        (0.5, 3, 1)
    """
    found: dict[str, Any] = {}
    for prefix, holder, is_list in _holders(modules, code=code):
        if is_list:
            found[f"the length of {prefix[:-1]}"] = len(holder)
        for key, value in _items(holder):
            if is_plain(value) or isinstance(value, kinds):
                found[f"{prefix}{key}"] = value
    return found


def changed_setting(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Name the first setting that is not the same afterwards; an empty name if all are."""
    names = [*before, *after.keys() - before.keys()]
    return next((name for name in names if not is_same(before.get(name), after.get(name))), "")


class Contents:
    """What modules hold, and what their lists, dicts and objects hold, to be put back."""

    def __init__(self, modules: Modules) -> None:
        holders = [holder for _, holder, _ in _holders(modules, code=True)]
        self._dicts = [(holder, dict(holder)) for holder in holders if type(holder) in _DICTS]
        self._lists = [(holder, list(holder)) for holder in holders if type(holder) in (list, deque)]
        self._sets = [(holder, set(holder)) for holder in holders if type(holder) is set]

    def put_back(self) -> None:
        """Let everything hold what it held."""
        for holder, before in self._dicts:
            for key in holder.keys() - before.keys():
                del holder[key]
            holder.update(before)
        for holder, before in self._sets:
            holder.intersection_update(before)
            holder.update(before)
        for holder, before in self._lists:
            holder.clear()
            holder.extend(before)


def _holders(modules: Modules, *, code: bool) -> Iterator[tuple[str, Any, bool]]:
    """The prefix of names in each collection, the collection, and whether its length is a setting."""
    seen: set[Any] | None = set() if code else None  # the classes and functions that have been read
    for name, module in modules:
        prefix = f"{name}." if name else ""
        yield from _inside(prefix, vars(module), _DEPTH, seen, is_list=False)
        if seen is not None and type(module) not in seen:
            seen.add(type(module))
            yield from _inside(f"{type(module).__name__}.", constants_of(type(module)), _DEPTH, seen, is_list=False)


def _inside(
    prefix: str, holder: Any, depth: int, seen: set[Any] | None, *, is_list: bool
) -> Iterator[tuple[str, Any, bool]]:
    yield prefix, holder, is_list
    for key, value in _items(holder) if depth else ():
        if key in _OF_TORCH or is_plain(value) or isinstance(value, (Tensor, nn.Module, ModuleType)):
            continue
        for part in _parts(value, seen):
            is_collection = isinstance(value, (list, tuple, deque, set, frozenset, dict))
            yield from _inside(f"{prefix}{key}.", part, depth - 1, seen, is_list=is_collection)


def _parts(value: Any, seen: set[Any] | None) -> Iterator[Any]:
    """The collections that a value consists of; of each function once."""
    if isinstance(value, (list, tuple, deque, set, frozenset, dict)):
        yield value
    elif isinstance(value, partial):
        yield value.func, value.args, value.keywords
    elif isinstance(value, MethodType):
        yield value.__func__, value.__self__
    elif isinstance(value, (FunctionType, type)):
        if seen is not None and value not in seen and not of_library(value):
            seen.add(value)
            yield constants_of(value) if isinstance(value, type) else read_by(value)
    elif not of_library(type(value)) or not (callable(value) or isinstance(value, Graph)):
        yield from attributes_of(value)


def _items(holder: Any) -> Sequence[tuple[Any, Any]]:
    """Return the keys and values of a dict, or the items of anything else with their numbers: the first of them."""
    if isinstance(holder, (set, frozenset)):  # in an order that does not depend on what was in it before
        holder = sorted(holder, key=repr)
    return list(islice(holder.items() if isinstance(holder, dict) else enumerate(holder), _WIDTH))
