"""What was measured, compared: medians, ratios, and what is expected."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freewheel.bench._gpu_cases import EXPECTED, FORWARD, Case, Expected

EAGER = "PyTorch: bp, eager"
FORWARD_MODE = (*FORWARD, "jvp", "jit(jvp)")  # how the names of contenders begin that have forward gradients
MIB = 1 << 20


@dataclass
class Row:
    """A contender: its turns in seconds a batch, its memory, or why it has none."""

    kind: str
    name: str
    turns: list[float] = field(default_factory=list)
    extra: int | None = None
    reserved: int | None = None
    error: str | None = None
    traceback: str | None = None

    def fail(self, error: str, traceback: str) -> None:
        """Note why there is no result, or no more."""
        self.error, self.traceback = error, traceback or None

    @property
    def seconds(self) -> float | None:
        """The median."""
        return statistics.median(self.turns) if self.turns else None

    @property
    def forward(self) -> bool:
        """Whether it has forward gradients."""
        return self.name.startswith(FORWARD_MODE)


def compare(case: Case, rows: Mapping[str, Row]) -> dict[str, Any]:
    """The result of a case."""

    def ratio(other: float | None, seconds: float | None) -> float | None:
        return other / seconds if other and seconds else None

    def best(forward: bool) -> float | None:
        """The best of the others with the same kind of gradient."""
        others = [row.seconds for row in rows.values() if row.kind != "freewheel" and row.forward == forward]
        return min((seconds for seconds in others if seconds), default=None)

    eager = rows[EAGER].seconds if EAGER in rows else None
    found = [
        {
            "name": name,
            "kind": row.kind,
            "seconds": row.seconds,
            "images_per_second": ratio(case.images or case.batch, row.seconds),
            "extra": row.extra,
            "reserved": row.reserved,
            "over_eager": ratio(eager, row.seconds),
            "over_best": ratio(best(row.forward), row.seconds) if row.kind == "freewheel" else None,
            "turns": row.turns,
            "error": row.error,
            "traceback": row.traceback,
        }
        for name, row in rows.items()
    ]
    return {"name": case.name, "title": case.title, "net": case.net, "batch": case.batch, "rows": found}


def findings(cases: Sequence[Mapping[str, Any]], expected: Sequence[Expected] = EXPECTED) -> list[dict[str, Any]]:
    """What is expected and was measured, and what was found."""
    rows = {(case["name"], row["name"]): row for case in cases for row in case["rows"]}
    titles = {case["name"]: case["title"] for case in cases}
    out = []
    for each in expected:
        row, other = rows.get((each.case, each.row)), rows.get((each.case, each.over or each.row))
        found = None if row is None or other is None else _found(each, row, other)
        if found is not None:
            about = f"{titles[each.case]}: {each.row}" + (f" over {each.over}" if each.over else "")
            out.append({"about": about, "found": found, "limit": each.limit, "unit": each.unit})
    return out


def _found(expected: Expected, row: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    if expected.memory:
        return None if row["extra"] is None else row["extra"] / MIB
    if row["seconds"] is None or other["seconds"] is None:
        return None
    return other["seconds"] / row["seconds"] if expected.over else 1e3 * row["seconds"]


def speed_ups(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many times as fast as `fgd` each other method is, for each network and batch size; on `graph`.

    Example:
        >>> rows = [{"name": f"freewheel: {n}, graph", "seconds": s} for n, s in (("fgd K=1", 3), ("asyncfgd K=2", 2))]
        >>> speed_ups([{"net": "a/b", "batch": 4, "rows": rows}])
        [{'net': 'a/b', 'batch': 4, 'name': 'asyncfgd K=2', 'speed_up': 1.5}]
    """
    out = []
    for case in cases:
        took = {row["name"]: row["seconds"] for row in case["rows"] if row["seconds"]}
        one = took.pop("freewheel: fgd K=1, graph", None)
        names = {name: name.removeprefix("freewheel: ").removesuffix(", graph") for name in took}
        facts = {"net": case["net"], "batch": case["batch"]}
        out += [{**facts, "name": names[name], "speed_up": one / took[name]} for name in took if one]
    return out
