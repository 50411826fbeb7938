"""Errors that say what came, what was wanted and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
