"""`freewheel methods`: what there is to choose from."""

from __future__ import annotations

from inspect import getdoc
from typing import Annotated, Any

from freewheel._files import as_json
from freewheel.cli._method_options import options_of, write_value
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import new_table, plural, print_line, print_table
from freewheel.cli._plan import locks, steady_plan
from freewheel.cli._traits import uses_forward_gradients
from freewheel.methods import METHODS, RACES, Method

STAGES = 3


def methods(*, json: Annotated[bool, declare(OPTIONS, "", "Print them as JSON.", negative=())] = False) -> None:
    """List all methods: delays, weights, locks and options."""
    rows = [describe(METHODS[name]()) for name in METHODS]
    races = [describe_race(name) for name in RACES]
    if json:
        print_line(as_json(rows + races))
        return
    credits = dict.fromkeys(row["credit"] for row in rows)
    shared = {credit: _shared([row["options"] for row in rows if row["credit"] == credit]) for credit in credits}
    facts = new_table("name", "delays", "order", "weights", "locks left", "options", wrap=("locks left", "options"))
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
    print_table(facts)
    for credit, options in shared.items():
        if options:
            print_line(f"Options of every method with {credit} credit: {_written(options)}")
    racing = new_table("name", "runtimes", "options", wrap=("options",), title="on shared weights, without a schedule")
    for race in races:
        racing.add_row(race["name"], " ".join(race["runtimes"]), _written(race["options"]))
    print_table(racing)
    words = new_table("name", "what it does", wrap=("what it does",))
    for row in rows + races:
        words.add_row(row["name"], row["description"])
    print_table(words)
    print_line(f"Delays and locks are those of {plural(STAGES, 'stage')}. Options are given with -o:")
    print_line("  freewheel plan fdg --stages 3 -o shrink=0.5")
    print_line("Any other choice of delays and weights is a `pipeline`:")
    print_line("  freewheel plan pipeline --stages 3 -o delays=3,1,0 -o order=backward -o weights=recompute")


def describe(method: Method) -> dict[str, Any]:
    """One method with its default options, as plain data; order and weights are None where they mean nothing."""
    pipeline = method.pipeline(STAGES)
    late = any(pipeline.delays) and not uses_forward_gradients(pipeline)
    return {
        "name": method.name,
        "credit": pipeline.credit.name,
        "stages": STAGES,
        "delays": list(pipeline.delays),
        "order": pipeline.order if late else None,
        "weights": pipeline.weights if late else None,
        "locks": locks(steady_plan(method, STAGES)),
        "options": options_of(method),
        "description": _description(type(method)),
    }


def describe_race(name: str) -> dict[str, Any]:
    """One method that races on shared weights, as plain data; it has neither delays nor locks."""
    race = RACES[name]
    return {
        "name": name,
        "credit": "chain",
        "runtimes": list(race.runtimes),
        "options": options_of(race()),
        "description": _description(race),
    }


def _description(kind: type[Method]) -> str:
    return (getdoc(kind) or "").split("\n")[0]


def _shared(options: list[dict[str, Any]]) -> dict[str, Any]:
    """The options that several methods all have, with the same defaults."""
    first, *rest = options if len(options) > 1 else [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in rest)}


def _written(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={write_value(value)}" for name, value in options.items())
