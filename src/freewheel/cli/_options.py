"""Options of a method as they are typed: `-o shrink=0.5 -o m=4,2,0`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from freewheel.methods import Method, method

UNTYPED = {  # only in Python
    "direction": "a direction is a function",
    "optimizer": "an optimizer is a function",
    "own": "feedback weights are tensors",
}
FILES = ("record", "replay")  # options that may be names of files, and so have no lists
WORDS = {"none": None, "true": True, "yes": True, "false": False, "no": False}


def option_flag(panel: str | None = None) -> Any:
    """The flag `-o`, for the commands that take a method."""
    text = "An option of the method; may be repeated."
    return typer.Option("-o", "--option", metavar="NAME=VALUE", help=text, rich_help_panel=panel)


def find_method(name: str, pairs: Iterable[str] | None) -> Method:
    """The method of this name, with options as they were typed."""
    options = read_options(pairs)
    if "name" in options:
        raise ValueError(f"-o name={options['name']}: no method has an option 'name'")
    for option, why in UNTYPED.items():
        if option in options:
            raise ValueError(f"-o {option}={options[option]}: {why}, which only Python can pass on")
    return method(name, **options)


def read_options(pairs: Iterable[str] | None) -> dict[str, Any]:
    """The options by name.

    Example:
        >>> read_options(["shrink=0.5", "order=forward", "m=4,2,0", "decay=none", "record=runs/1"])
        {'shrink': 0.5, 'order': 'forward', 'm': (4, 2, 0), 'decay': None, 'record': 'runs/1'}
    """
    out: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name.isidentifier() or not text:
            raise ValueError(f"-o {pair}: write NAME=VALUE, such as -o shrink=0.5 or -o m=4,2,0")
        if name in out:
            raise ValueError(f"-o {pair}: {name!r} is given twice")
        try:
            out[name] = text if name in FILES and not text.isdigit() else read_value(text)
        except ValueError as error:
            raise ValueError(f"-o {pair}: {error}") from None
    return out


def read_value(text: str) -> Any:
    """A number, None, a truth value, a tuple of whole numbers or of pairs of them; else the text itself.

    Example:
        >>> [read_value(text) for text in ("3", "0.5", "none", "1,1,0", "2,", "3/2,2/2", "forward")]
        [3, 0.5, None, (1, 1, 0), (2,), ((3, 2), (2, 2)), 'forward']
    """
    if "," in text or "/" in text:
        return tuple(_item(item.strip()) for item in text.removesuffix(",").split(","))
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_slow(texts: Iterable[str] | None) -> dict[int, tuple[float, float]]:
    """The stragglers of `--slow`, by stage.

    Example:
        >>> read_slow(["0:0.3:0.5", "2:1:1.5"])
        {0: (0.3, 0.5), 2: (1.0, 1.5)}
    """
    out: dict[int, tuple[float, float]] = {}
    for text in texts or ():
        try:
            stage, probability, factor = text.split(":")
            key, pair = int(stage), (float(probability), float(factor))
        except ValueError:
            raise ValueError(f"--slow {text}: write STAGE:PROBABILITY:FACTOR, such as --slow 0:0.3:0.5") from None
        if key in out:
            raise ValueError(f"--slow {text}: stage {key} is given twice")
        out[key] = pair
    return out


def write_value(value: Any) -> str:
    """The same the other way round.

    Example:
        >>> [write_value(value) for value in (None, True, (4, 2, 0), 0.1353352832366127, "forward")]
        ['none', 'true', '4,2,0', '0.1353', 'forward']
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join("/".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _item(text: str) -> int | tuple[int, ...]:
    try:
        first, *rest = (int(part) for part in text.split("/"))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number, as each part of a list must be") from None
    return (first, *rest) if rest else first
