"""Checks of what a caller typed."""

from __future__ import annotations


def integer(argument: str, value: object, *, least: int | None = None) -> int:
    """Return `value` if it is an int of at least `least`, else raise naming the argument.

    Example:
        >>> integer("batch_size", 0, least=1)
        Traceback (most recent call last):
        ...
        ValueError: batch_size must be at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{argument} must be at least {least}, got {value}")
    return value


def flag(argument: str, value: object) -> bool:
    """Return `value` if it is a bool, else raise naming the argument.

    Example:
        >>> flag("shuffle", True)
        True
    """
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {value!r}")
    return value
