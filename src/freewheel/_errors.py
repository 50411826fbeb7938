"""Argument checks whose errors name the argument, the value and the remedy in one line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LEAST_LETTERS = 3  # of a name that others are searched for


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is not in a table, with the closest match as a suggestion.

    That is the shortest name that contains the given one, as far as letters and digits go, before the most similar one.

    Example:
        >>> raise unknown("method", "pipedreem", ["bp", "pipedream"])
        Traceback (most recent call last):
        ...
        ValueError: unknown method 'pipedreem': did you mean 'pipedream'? (known: bp, pipedream)
    """
    names = list(known)
    given = _letters(str(name))
    containing = [n for n in names if len(given) >= LEAST_LETTERS and given in _letters(n)]
    if containing:
        return _unknown(kind, name, names, min(containing, key=len))
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    return _unknown(kind, name, names, next((n for n in names if near and n.lower() == near[0]), None))


def _unknown(kind: str, name: object, names: list[str], meant: str | None) -> ValueError:
    hint = "" if meant is None else f"did you mean {meant!r}? "
    return ValueError(f"unknown {kind} {name!r}: {hint}({'known: ' + ', '.join(names) if names else 'none is known'})")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def whole_number(name: str, value: object, *, least: int) -> int:
    """Return the value if it is a whole number, not a bool, and large enough.

    Example:
        >>> whole_number("epochs", 0, least=1)
        Traceback (most recent call last):
        ...
        ValueError: epochs=0: give 1 or more
    """
    given = of_type(name, value, int, f"give a whole number, {least} or more")
    if given < least:
        raise ValueError(f"{name}={given}: give {least} or more")
    return given


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    hint: str = "",
    finite: bool = True,
) -> float:
    """Return the value if it is a number, not a bool, within these bounds, and finite unless infinity makes sense.

    Example:
        >>> number("clip", -1, above=0, hint="the largest gradient norm")
        Traceback (most recent call last):
        ...
        ValueError: clip=-1: give the largest gradient norm, a number above 0
    """
    bound = "a number" + (f", {least:g} or more" if least is not None else "")
    bound = bound if above is None else f"a number above {above:g}"
    advice = f"give {hint + ', ' if hint else ''}{bound}"
    given = float(of_type(name, value, (int, float), advice))
    low = (above is not None and not given > above) or (least is not None and not given >= least)
    if low or math.isnan(given) or (finite and math.isinf(given)):
        raise ValueError(f"{name}={value!r}: {advice}")
    return given


def of_type(name: str, value: object, kind: type[T] | tuple[type[T], ...], hint: str) -> T:
    """Return the value if it has this type; a bool is not an int.

    Example:
        >>> of_type("labels", 1, bool, "give True or False")
        Traceback (most recent call last):
        ...
        TypeError: labels=1: give True or False
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
        raise TypeError(f"{name}={_shown(value)}: {hint}")
    return value


def _shown(value: object) -> str:
    """Return the repr of a value on one line."""
    return " ".join(repr(value).split())


def check_callable(name: str, value: object, hint: str) -> None:
    """Reject a value that cannot be called; the hint says what to give."""
    if not callable(value):
        raise TypeError(f"{name}={_shown(value)}: {hint}")


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Reject a name that is not in a table; see `unknown`."""
    names = list(known)
    if value not in names:
        raise unknown(name, value, names)
