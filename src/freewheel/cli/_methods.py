"""`freewheel methods`: what there is to choose from."""

from __future__ import annotations

from dataclasses import fields
from inspect import getdoc
from typing import Annotated, Any

import typer

from freewheel.cli._options import UNTYPED, write_value
from freewheel.cli._output import as_json, say, show, table
from freewheel.cli._plan import lasting, locks
from freewheel.methods import METHODS, RACES, Method
from freewheel.plan import CREDITS
from freewheel.racing import Racing

STAGES = 3


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List all methods: delays, weights, locks and options."""
    rows = [describe(METHODS[name]()) for name in METHODS]
    if json:
        say(as_json(rows + [describe_race(RACES[name]()) for name in RACES]))
        return
    shared = {credit: _shared([row["options"] for row in rows if row["credit"] == credit]) for credit in CREDITS}
    facts = table("name", "delays", "order", "weights", "locks left", "options", wrap=("locks left", "options"))
    words = table("name", "what it does", wrap=("what it does",))
    for row in rows:
        own = {name: value for name, value in row["options"].items() if name not in shared[row["credit"]]}
        cells = [
            row["name"],
            " ".join(map(str, row["delays"])),
            row["order"],
            row["weights"],
            ", ".join(row["locks"]) or "none",
            _written(own),
        ]
        facts.add_row(*(cell or "-" for cell in cells))
        words.add_row(row["name"], row["description"])
    show(facts)
    for credit, options in shared.items():
        if options:
            say(f"Options of every method of {credit} gradients: {_written(options)}")
    races = table("name", "runtimes", "options", wrap=("options",), title="on shared weights, without a schedule")
    for race in (describe_race(RACES[name]()) for name in RACES):
        races.add_row(race["name"], " ".join(race["runtimes"]), _written(race["options"]))
        words.add_row(race["name"], race["description"])
    show(races)
    show(words)
    say(f"Delays and locks are those of {STAGES} stages. Options are given with -o:")
    say("  freewheel plan fdg --stages 3 -o shrink=0.5")
    say("Any other choice of delays and weights is a `pipeline`:")
    say("  freewheel plan pipeline --stages 3 -o delays=3,1,0 -o order=backward -o weights=recompute")


def describe(method: Method) -> dict[str, Any]:
    """One method with its default options, as plain data.

    Order and weights mean nothing without delays, and nothing without backwards.
    """
    pipeline = method.pipeline(STAGES)
    late = any(pipeline.delays) and pipeline.credit.name != "forward"
    options = fields(method)  # pyright: ignore[reportArgumentType]
    return {
        "name": method.name,
        "credit": pipeline.credit.name,
        "stages": STAGES,
        "delays": list(pipeline.delays),
        "order": pipeline.order if late else None,
        "weights": pipeline.weights if late else None,
        "locks": locks(lasting(method, STAGES)),
        "options": {option.name: getattr(method, option.name) for option in options if option.name not in UNTYPED},
        "description": (getdoc(type(method)) or "").split("\n")[0],
    }


def describe_race(method: Racing) -> dict[str, Any]:
    """One method that races on shared weights, as plain data; it has no delays and no locks to tell of."""
    options = fields(method)  # pyright: ignore[reportArgumentType]
    return {
        "name": method.name,
        "credit": "chain",
        "runtimes": list(method.runtimes),
        "options": {option.name: getattr(method, option.name) for option in options},
        "description": (getdoc(type(method)) or "").split("\n")[0],
    }


def _shared(options: list[dict[str, Any]]) -> dict[str, Any]:
    """What all of them have, if there are several."""
    first, *rest = options if len(options) > 1 else [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


def _written(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={write_value(value)}" for name, value in options.items())
