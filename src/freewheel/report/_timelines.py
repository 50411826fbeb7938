"""Timelines, measured and planned, as columns of numbers.

::

    row     which of `rows`           0    0    1 …
    op      which of `ops`            0    4    0 …    index of the name of an action
    batch   micro   version           3 …              -1 where there is none
    begin   length                    12 …             whole units
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from freewheel.report import _words as words
from freewheel.runs import Run
from freewheel.trace import DATA, Trace, TraceEvent, row_name, row_of

MICRO = 1e6
MOST = 12_000  # actions that a page draws, over all runs
SHORTEST = 3  # µs: waits below it are not drawn
USUAL = 3  # times the median: what a batch takes at most where a timeline opens
IN_A_ROW = 4  # batches there
EMPTY = "The trace is empty: no batch of this run was recorded."
WHOLE = ("U", "S", DATA)  # actions of a whole batch, whatever its micro-batches
NAMES = {"F": "forward", "R": "recomputation", "B": "backward", "U": "update", "S": "synchronisation", DATA: "data"}
CHANNELS = {
    "a": "an activation",
    "g": "a gradient",
    "t": "the turn",
    "n": "gradient norms",
    "c": "the clipping norm",
    "r": "the gradients of replicas",
    "e": "an error",
    "d": "a directional derivative",
}
Row = tuple[int, int, int]  # a row of a trace: see `row_of`


class Block(NamedTuple):
    """What is drawn as one block."""

    row: int
    op: str
    batch: int
    micro: int | None
    version: int | None
    begin: int
    length: int


def measured_timeline(trace: Trace, most: int = MOST) -> dict[str, Any]:
    """The timeline of a trace: its first events, in microseconds."""
    if not trace.events:
        return {"missing": EMPTY}
    rows = rows_of(trace)
    index = {row: place for place, row in enumerate(rows)}
    events = [event for event in trace.events if event.is_compute or event.seconds * MICRO >= SHORTEST]
    drawn = events[:most]
    blocks = (_block(event, index[row_of(event, trace.meta)]) for event in drawn)
    first, notes = opening(drawn), list[str]()
    if len(drawn) < len(events):
        until = words.seconds(drawn[-1].begin)
        notes.append(
            f"The first {len(drawn):,} of {len(events):,} actions are drawn, up to {until} of "
            f"{words.seconds(trace.seconds)}; all other figures are of the whole trace."
        )
    if first != drawn[0].batch:
        notes.append(f"It opens at batch {first}, where batches take as long as most do.")
    return _columns(blocks, "µs", list(rows.values()), opens=first) | {"note": " ".join(notes)}


def opening(events: Iterable[TraceEvent]) -> int:
    """The batch at which a timeline opens: the first ones may take a hundred times as long as others.

    It is the first of some batches in a row that take about as long as most, or else the first of all.
    """
    begins: dict[int, float] = {}
    for event in events:  # in the order in which they begin
        begins.setdefault(event.batch, event.begin)
    taken = [end - begin for begin, end in pairwise(begins.values())]
    most = USUAL * median(taken) if taken else 0.0
    for number, batch in enumerate(begins):
        row = taken[number : number + IN_A_ROW]
        if len(row) == IN_A_ROW and max(row) <= most:
            return batch
    return next(iter(begins))


def planned_timeline(run: Run) -> dict[str, Any]:
    """The timeline of the plan, in ticks; a tick is divided in a thousand units."""
    timeline = run.facts.get("timeline")
    if timeline is None:
        return {"missing": _no_plan(run)}
    blocks = (
        Block(stage, op, batch, micro, version, round(1000 * begin), round(1000 * (end - begin)))
        for stage, op, batch, micro, version, begin, end in timeline["cells"]
    )
    return _columns(blocks, "ticks", [f"stage {stage}" for stage in range(run.facts["stages"])], opens=0)


def rows_of(trace: Trace) -> dict[Row, str]:
    """What each row of a trace is called, replica by replica; a stage with two threads has two rows."""
    rows = sorted({row_of(event, trace.meta) for event in trace.events})
    after = trace.replicas > 1
    return {row: row_name(row, trace.meta) + (f" · replica {row[0]}" if after else "") for row in rows}


def _no_plan(run: Run) -> str:
    if run.facts.get("method", {}).get("delays", 0) is None:
        return "This method has no plan: its workers race, and nobody knows beforehand who is first."
    return "No plan is written in the folder of this run."


def _block(event: TraceEvent, row: int) -> Block:
    begin = round(event.begin * MICRO)
    length = max(1, round(event.end * MICRO) - begin)
    micro = None if event.name in WHOLE else event.micro
    return Block(row, event.name, event.batch, micro, event.version, begin, length)


def _columns(blocks: Iterable[Block], unit: str, rows: list[str], *, opens: int) -> dict[str, Any]:
    blocks = list(blocks)
    ops = list(dict.fromkeys(block.op for block in blocks))
    number = {op: i for i, op in enumerate(ops)}
    micros = any(block.micro for block in blocks)
    return {
        "unit": unit,
        "opens": opens,  # the batch that is shown first
        "rows": rows,
        "ops": [{"name": op, "text": action_text(op), "computes": op.isupper()} for op in ops],
        "row": [block.row for block in blocks],
        "op": [number[block.op] for block in blocks],
        "batch": [block.batch for block in blocks],
        "micro": [-1 if block.micro is None else block.micro for block in blocks] if micros else None,
        "version": [-1 if block.version is None else block.version for block in blocks],
        "begin": [block.begin for block in blocks],
        "length": [block.length for block in blocks],
        "end": max((block.begin + block.length for block in blocks), default=0),
    }


def action_text(op: str) -> str:
    """An action in words.

    Example:
        >>> action_text("F"), action_text(">a"), action_text("g>"), action_text("data")
        ('forward', 'waits for an activation', 'sends a gradient', 'waits for data')
    """
    if op == DATA:
        return "waits for data"
    if op.isupper():
        return NAMES.get(op, op)
    what = CHANNELS.get(op.strip(">"), f"a message {op.strip('>')}")
    return f"waits for {what}" if op.startswith(">") else f"sends {what}"
