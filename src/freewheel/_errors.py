"""Errors that say what came, what was wanted and what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not in a table: it suggests the nearest one.

    Example:
        >>> raise unknown("method", "pipedreem", ["bp", "pipedream"])
        Traceback (most recent call last):
        ...
        ValueError: unknown method 'pipedreem': did you mean 'pipedream'? (known: bp, pipedream)
    """
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = next((f"did you mean {n!r}? " for n in names if near and n.lower() == near[0]), "")
    return ValueError(f"unknown {kind} {name!r}: {hint}({'known: ' + ', '.join(names) if names else 'there is none'})")


def whole_number(name: str, value: object, *, least: int) -> int:
    """The value, if it is a whole number and large enough; one clear line otherwise.

    Example:
        >>> whole_number("epochs", 0, least=1)
        Traceback (most recent call last):
        ...
        ValueError: epochs=0: give 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: give a whole number, {least} or more")
    if value < least:
        raise ValueError(f"{name}={value}: give {least} or more")
    return value


def number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, hint: str = ""
) -> float:
    """The value, if it is a finite number (not a bool) within these bounds; one clear line otherwise.

    Example:
        >>> number("clip", -1, above=0, hint="the largest gradient norm")
        Traceback (most recent call last):
        ...
        ValueError: clip=-1: give the largest gradient norm, a number above 0
    """
    bound = (
        f"a number above {above:g}"
        if above is not None
        else f"a number, {least:g} or more"
        if least is not None
        else "a number"
    )
    given = f"{name}={value!r}: give {hint + ', ' if hint else ''}{bound}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(given)
    if (
        not math.isfinite(value)
        or (above is not None and not value > above)
        or (least is not None and not value >= least)
    ):
        raise ValueError(given)
    return float(value)


def of_type(name: str, value: object, kind: type[T] | tuple[type[T], ...], hint: str) -> T:
    """The value, if it is of this type; one clear line that ends with the hint otherwise.

    Example:
        >>> of_type("labels", 1, bool, "give True or False")
        Traceback (most recent call last):
        ...
        TypeError: labels=1: give True or False
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r}: {hint}")
    return value


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Refuses a name that is not in a table; see `unknown`."""
    names = list(known)
    if value not in names:
        raise unknown(name, value, names)
