"""Options of a method as they are typed: `-o shrink=0.5 -o m=4,2,0`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from freewheel.methods import Method, method

PYTHON_ONLY = {
    "direction": "a direction is a function",
    "optimizer": "an optimizer is a function",
    "heads": "heads are made by a function",
    "own": "feedback weights are tensors",
}
FILES = ("record", "replay")  # their values may be file names, so slashes and commas do not make a list
WORDS = {"none": None, "true": True, "yes": True, "false": False, "no": False}


def find_method(name: str, pairs: Iterable[str]) -> Method:
    """The method of this name, with typed options."""
    options = read_options(pairs)
    if "name" in options:
        raise ValueError(f"-o name={options['name']}: no method has an option 'name'")
    for option, why in PYTHON_ONLY.items():
        if option in options:
            raise ValueError(f"-o {option}={options[option]}: {why}, which can only be passed in Python")
    return method(name, **options)


def options_of(method: Method) -> dict[str, Any]:
    """The options of a method by name, without those that only Python can pass."""
    names = [field.name for field in fields(method)]  # pyright: ignore[reportArgumentType]
    return {name: getattr(method, name) for name in names if name not in PYTHON_ONLY}


def complete_options(name: str, pairs: Iterable[str]) -> tuple[str, ...]:
    """The options of a method as `-o` takes them: the typed ones, and all others that can be typed.

    Example:
        >>> complete_options("fdg", ["order=forward"])
        ('order=forward', 'shrink=1.0', 'step_size=update')
    """
    given, typed = tuple(pairs), read_options(pairs)
    others = {key: value for key, value in options_of(find_method(name, given)).items() if key not in typed}
    written = {key: f"{key}={write_value(value, exact=True)}" for key, value in others.items()}
    return given + tuple(pair for key, pair in written.items() if _reads_as(pair, key, others[key]))


def _reads_as(pair: str, name: str, value: Any) -> bool:
    try:
        return read_options([pair]) == {name: value}
    except ValueError:
        return False


def read_options(pairs: Iterable[str]) -> dict[str, Any]:
    """The options by name.

    Example:
        >>> read_options(["shrink=0.5", "order=forward", "m=4,2,0", "decay=none", "record=runs/1"])
        {'shrink': 0.5, 'order': 'forward', 'm': (4, 2, 0), 'decay': None, 'record': 'runs/1'}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (piece.strip() for piece in pair.partition("="))
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
    """A number, None, a bool, a tuple of whole numbers or of pairs of them; otherwise the text itself.

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


def _item(text: str) -> int | tuple[int, ...]:
    try:
        first, *rest = (int(number) for number in text.split("/"))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number, as every item of a list must be") from None
    return (first, *rest) if rest else first


def write_value(value: Any, *, exact: bool = False) -> str:
    """The inverse of `read_value`; floats have four digits unless `exact`.

    Example:
        >>> [write_value(value) for value in (None, True, (4, 2, 0), 0.1353352832366127, "forward")]
        ['none', 'true', '4,2,0', '0.1353', 'forward']
        >>> write_value(0.1353352832366127, exact=True), write_value((2,)), write_value(((3, 2),))
        ('0.1353352832366127', '2,', '3/2,')
    """
    if value is None or value is True or value is False:
        return str(value).lower()
    if isinstance(value, tuple):
        items = ["/".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value]
        return ",".join(items) + "," * (len(items) == 1)
    return f"{value:.4g}" if isinstance(value, float) and not exact else str(value)


def read_slow(texts: Iterable[str]) -> dict[int, tuple[float, float]]:
    """The stragglers of `--slow`, by stage.

    Example:
        >>> read_slow(["0:0.3:0.5", "2:1:1.5"])
        {0: (0.3, 0.5), 2: (1.0, 1.5)}
    """
    out: dict[int, tuple[float, float]] = {}
    for text in texts:
        try:
            stage, probability, factor = text.split(":")
            key, pair = int(stage), (float(probability), float(factor))
        except ValueError:
            raise ValueError(f"--slow {text}: write STAGE:PROBABILITY:FACTOR, such as --slow 0:0.3:0.5") from None
        if key in out:
            raise ValueError(f"--slow {text}: stage {key} is given twice")
        out[key] = pair
    return out
