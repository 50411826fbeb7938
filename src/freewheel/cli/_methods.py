"""`freewheel methods`: what there is to choose from."""

from __future__ import annotations

from dataclasses import fields
from inspect import getdoc
from typing import Annotated, Any

import typer

from freewheel.cli._options import write_value
from freewheel.cli._output import as_json, say, show, table
from freewheel.cli._plan import lasting, locks
from freewheel.methods import METHODS, Method

STAGES = 3


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List all methods: delays, weights, locks and options."""
    rows = [describe(METHODS[name]()) for name in METHODS]
    if json:
        say(as_json(rows))
        return
    facts = table("name", "delays", "order", "weights", "locks left", "options", wrap=("locks left", "options"))
    words = table("name", "what it does", wrap=("what it does",))
    for row in rows:
        cells = [
            row["name"],
            " ".join(map(str, row["delays"])),
            row["order"],
            row["weights"],
            ", ".join(row["locks"]) or "none",
            " ".join(f"{name}={write_value(value)}" for name, value in row["options"].items()),
        ]
        facts.add_row(*(cell or "-" for cell in cells))
        words.add_row(row["name"], row["description"])
    show(facts)
    show(words)
    say(f"Delays and locks are those of {STAGES} stages. Options are given with -o:")
    say("  freewheel plan fdg --stages 3 -o shrink=0.5")
    say("Any other choice of delays and weights is a `pipeline`:")
    say("  freewheel plan pipeline --stages 3 -o delays=3,1,0 -o order=backward -o weights=recompute")


def describe(method: Method) -> dict[str, Any]:
    """One method with its default options, as plain data; without delays, order and weights mean nothing."""
    pipeline = method.pipeline(STAGES)
    late = any(pipeline.delays)
    options = fields(method)  # pyright: ignore[reportArgumentType]
    return {
        "name": method.name,
        "stages": STAGES,
        "delays": list(pipeline.delays),
        "order": pipeline.order if late else None,
        "weights": pipeline.weights if late else None,
        "locks": locks(lasting(method, STAGES)),
        "options": {option.name: getattr(method, option.name) for option in options},
        "description": (getdoc(type(method)) or "").split("\n")[0],
    }
