"""Plain values, which nobody can change in place."""

from __future__ import annotations

from typing import Any

PLAIN = (int, float, bool, str, type(None))


def is_plain(value: Any) -> bool:
    """Whether a value is a plain one, or a tuple of such.

    Example:
        >>> is_plain((1, ("a", None))), is_plain([1])
        (True, False)
    """
    return type(value) in PLAIN or (type(value) is tuple and all(map(is_plain, value)))


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or equal plain values of one type.

    Example:
        >>> is_same((1, 2.0), (1, 2.0)), is_same(1, True), is_same([], [])
        (True, False, False)
    """
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a):
        return False
    return len(a) == len(b) and all(map(is_same, a, b)) if type(a) is tuple else a == b
