"""How an option of a command is declared, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import CoercionError, Group, Parameter, Token

OPTIONS = Group("Options", sort_key=0)  # the panel of commands that have few


def declare(panel: Group, metavar: str, text: str, *short: str, **more: Any) -> Parameter:
    """An option with its help panel, its metavar (empty for a flag), its help and its short names."""
    return Parameter(group=panel, metavar=metavar or None, help=text, alias=short, **more)


def several(kind: type[Any], tokens: Sequence[Token]) -> Any:
    """Several numbers, with spaces or commas between them."""
    number = get_args(kind)[0]
    found: list[Any] = []
    for token in tokens:
        for text in filter(None, token.value.split(",")):
            try:
                found.append(number(text))
            except ValueError:
                raise CoercionError(token=token, target_type=number) from None
    return tuple(found)


def flag(name: str) -> str:
    """An option as it is typed.

    Example:
        >>> flag("batch_size")
        '--batch-size'
    """
    return f"--{name.replace('_', '-')}"
