"""`freewheel doctor`: versions, devices, and what works here."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

from rich.console import Console
from rich.text import Text

from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import new_table, plural, print_line, print_table
from freewheel.doctor import TRIALS, Facts, Finding, facts, try_all
from freewheel.report._words import size

WORDS = {True: ("works", "green"), False: ("does not work", "red"), None: ("not here", "dim")}
CANNOT = 1  # the exit code where nothing can be trained


def doctor(*, json: Annotated[bool, declare(OPTIONS, "", "Print it as JSON.", negative=())] = False) -> int:
    """Print versions and resources, and try what works here, each thing in a process of its own."""
    known = facts()
    if json:
        found = list(try_all())
        text = {**asdict(known), "trials": [asdict(each) for each in found], "trains": _trains(found)}
        print_line(json_module.dumps(text, indent=2))
    else:
        _print_facts(known)
        found = _tried()
        print_line("Freewheel trains here." if _trains(found) else "Freewheel cannot train here.")
    return 0 if _trains(found) else CANNOT


def described(known: Facts) -> Iterator[tuple[str, str]]:
    """The facts, each with its name.

    Example:
        >>> [name for name, _ in described(facts())]
        ['versions', 'extras', 'system', 'CPU', 'memory']
    """
    yield "versions", _joined(known.versions)
    missing = [extra for extra, found in known.extras.items() if None in found.values()]
    installed = _joined({name: value for found in known.extras.values() for name, value in found.items() if value})
    asks = f"; not all of {', '.join(missing)}: pip install 'freewheel[{','.join(missing)}]'" if missing else ""
    yield "extras", installed + asks
    yield "system", known.system
    yield "CPU", f"{known.cpu}, {plural(known.cores, 'core')} to use"
    parts = (("", known.memory), ("shared memory ", known.shared))
    free = [f"{name}{size(each[1])} free of {size(each[0])}" for name, each in parts if each]
    yield "memory", ", ".join(free) or "not known"


def _joined(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


def _print_facts(known: Facts) -> None:
    table = new_table("", "", wrap=("",))
    table.show_header = False
    for name, text in described(known):
        table.add_row(Text(name, "bold"), text)
    print_table(table)


def _tried() -> list[Finding]:
    """Try all, and print a table of it."""
    tried: list[Finding] = []
    with Console(stderr=True).status("trying what works here") if sys.stderr.isatty() else nullcontext() as status:
        for found in try_all():
            tried.append(found)
            if status is not None:
                status.update(f"trying what works here: {len(tried)} of {len(TRIALS)}")
    table = new_table("", "", "", wrap=("",))
    table.show_header = False
    for found in tried:
        word, colour = WORDS[found.works]
        table.add_row(found.name, Text(word, colour), "\n".join(filter(None, (found.note, found.remedy))))
    print_table(table)
    return tried


def _trains(found: list[Finding]) -> bool:
    core = {trial.name for trial in TRIALS if trial.core}
    return all(each.works for each in found if each.name in core)
