"""Checks of what a caller typed."""

from __future__ import annotations


def flag(argument: str, value: object) -> bool:
    """Return `value` if it is a bool, else raise naming the argument.

    Example:
        >>> flag("shuffle", True)
        True
    """
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {value!r}")
    return value
