"""What the reader of docstrings does not see by itself: `Example:`, inherited options, the arguments of a trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ARGS = re.compile(r"^Args:\n((?:    .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+):.*\n(?:     .*\n)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Completes docstrings and signatures before they are shown."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete each class of the package; called once all of it is read."""
        for found in list(_classes(pkg)):
            if found.docstring is not None:
                found.docstring.value = with_inherited(found)
            _take_options(found)
        for each in _documented(pkg):
            each.docstring.value = each.docstring.value.replace("Example:\n", "Examples:\n")


def with_inherited(found: griffe.Class) -> str:
    """Return the docstring of a class; that of a dataclass, with the fields that its bases describe."""
    text = found.docstring.value
    section, inherited = ARGS.search(f"{text}\n"), {}
    for base in reversed(found.mro()):
        above = ARGS.search(f"{base.docstring.value}\n") if base.docstring is not None else None
        inherited |= entries(above[1]) if above and "dataclass" in base.labels else {}
    own = entries(section[1]) if section else {}
    rows = "".join({**inherited, **own}.values())
    if "dataclass" not in found.labels or not inherited:
        return text
    if section is None:
        head, example, rest = text.partition("Example:\n")
        return f"{head.rstrip()}\n\nArgs:\n{rows}\n{example}{rest}"
    return f"{text[: section.start(1)]}{rows}\n{text[section.end() :].lstrip()}"


def entries(section: str) -> dict[str, str]:
    """Return the lines of a section on each argument."""
    return {match[1]: match.group() for match in ENTRY.finditer(section)}


def _take_options(found: griffe.Class) -> None:
    """Show the signature that `takes_options` makes: options by name, in place of the object that has them."""
    made = found.members.get("__init__")
    if not isinstance(made, griffe.Function) or not any("takes_options" in str(d.value) for d in made.decorators):
        return
    *first, _ = made.parameters
    kind = griffe.ParameterKind.var_keyword
    made.parameters = griffe.Parameters(*first, griffe.Parameter("options", annotation="Any", kind=kind))


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in _own(module):
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _classes(member)


def _documented(module: griffe.Object) -> Iterator[griffe.Object]:
    if module.docstring is not None:
        yield module
    for member in _own(module):
        yield from _documented(member)


def _own(found: griffe.Object) -> Iterator[griffe.Object]:
    return (member for member in found.members.values() if isinstance(member, griffe.Object))
