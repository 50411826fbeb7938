"""Plans as text timelines: drawing and parsing."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from freewheel.plan._actions import Action, Op
from freewheel.plan._clock import Position, Streams, ticks
from freewheel.plan._credit import CREDITS, PlanCredit
from freewheel.plan._schedule import ORDERS, OVER_TIME, WEIGHTS, Schedule
from freewheel.plan._streams import wire

if TYPE_CHECKING:
    from freewheel.plan._plan import Plan

_DEFAULTS = {f.name: f.default for f in fields(Schedule) if f.init and f.name not in ("name", "credit")}


def draw(schedule: Schedule, batches: int, streams: Streams, *, mark: Position | None = None) -> str:
    """Draw the timeline: a column per tick, a row per stage, `!` for the update of the same batch, `.` for idle.

    Messages are drawn only if they differ from those that `wire` adds. `mark` underlines an action.
    """
    plain = all(
        tuple(wire(schedule, stage, [a for a in actions if a.op.is_compute])) == tuple(actions)
        for stage, actions in enumerate(streams)
    )
    learns = schedule.credit.learns_by
    when = ticks(schedule, streams)
    marked: tuple[int, int, str] | None = None
    cells: list[dict[int, list[str]]] = [{} for _ in streams]
    for stage, actions in enumerate(streams):
        updates, before = 0, None
        for i, action in enumerate(actions):
            words = cells[stage].setdefault(when[stage][i], [])
            here = mark == (stage, i)
            follows = words and before is not None and before.op is learns and before.batch == action.batch
            if plain and follows and action.op is Op.UPDATE and action.version == updates and not here:
                words[-1] += "!"
            elif action.op.is_compute or not plain or here:
                words.append(str(action))
            if here:
                marked = stage, when[stage][i], str(action)
            if action.op.is_compute:
                before = action
            updates += action.op is Op.UPDATE
    columns = 1 + max((tick for row in cells for tick, words in row.items() if words), default=-1)
    texts = [[" ".join(row[t]) if row.get(t) else "." for t in range(columns)] for row in cells]
    widths = [max(len(str(t)), *(len(row[t]) for row in texts)) for t in range(columns)]
    label = len(f"stage {len(streams) - 1}")
    lines = [_header(schedule, batches), _row("time".ljust(label), [str(t) for t in range(columns)], widths)]
    for stage, row in enumerate(texts):
        lines.append(_row(f"stage {stage}".ljust(label), row, widths))
        if marked is not None and marked[0] == stage:
            _, tick, word = marked
            inside = f" {row[tick]}".index(f" {word}")
            lines.append(" " * (label + sum(w + 2 for w in widths[:tick]) + 2 + inside) + "^" * len(word))
    return "\n".join(lines)


def _row(label: str, words: list[str], widths: list[int]) -> str:
    return "  ".join([label, *(word.ljust(width) for word, width in zip(words, widths))]).rstrip()


def _header(schedule: Schedule, batches: int) -> str:
    options = {} if schedule.credit_options == (("credit", "chain"),) else dict(schedule.credit_options)
    options |= {name: getattr(schedule, name) for name in _DEFAULTS if getattr(schedule, name) != _DEFAULTS[name]}
    words = [f"{name}={_write(value)}" for name, value in options.items()]
    return " ".join([f"plan {schedule.name}:", *words, f"batches={batches}"])


def _write(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_write(v) if not isinstance(v, tuple) else "/".join(map(str, v)) for v in value)
    return "yes" if value is True else str(value)


def parse(text: str) -> Plan:
    """Parse a drawing into a plan. Only the order of the actions in a row counts, not the columns.

    Messages are added if no row has any. The result is not checked: call `check` on it.

    Example:
        >>> import freewheel as fw
        >>> plan = fw.plan("fdg", k=2, batches=3)
        >>> parse(str(plan)) == plan
        True
    """
    from freewheel.plan._plan import Plan

    lines = [line for line in text.strip().splitlines() if line.strip(" ^")]
    schedule, batches = _read_header(lines[0] if lines else "")
    rows: dict[int, list[Action]] = {}
    for line in lines[1:]:
        words = line.split()
        if words[0] == "time":
            continue
        if words[0] != "stage" or len(words) < 2 or not words[1].isdigit() or int(words[1]) in rows:
            raise ValueError(
                f"cannot read the line {line!r}: each stage has one line, starting with 'stage 0', 'stage 1', …"
            )
        rows[int(words[1])] = list(_read_row(words[2:]))
    if sorted(rows) != list(range(schedule.stages)):
        raise ValueError(
            f"the drawing has lines for stages {sorted(rows)}, but delays={schedule.delays} asks for {schedule.stages}"
        )
    bare = all(action.op.is_compute for row in rows.values() for action in row)
    streams = tuple(
        tuple(wire(schedule, stage, rows[stage]) if bare else rows[stage]) for stage in range(schedule.stages)
    )
    return Plan(schedule=schedule, batches=batches, streams=streams)


def _read_row(words: list[str]):
    updates = 0
    for word in words:
        if word == ".":
            continue
        action = Action.parse(word.removesuffix("!"))
        yield action
        if word.endswith("!"):
            yield Action(Op.UPDATE, action.batch, updates)
        updates += word.endswith("!") or action.op is Op.UPDATE


def _read_header(line: str) -> tuple[Schedule, int]:
    kind, _, rest = line.partition(" ")
    name, _, pairs = rest.partition(":")
    try:
        given = dict(pair.split("=", 1) for pair in pairs.split())
        batches = int(given.pop("batches"))
        read = {key: _READERS[key](given.pop(key)) for key in list(given) if key in _READERS}
        if kind != "plan" or "delays" not in read:
            raise KeyError(line)
        return Schedule(name=name, credit=_read_credit(given), **read), batches
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"cannot read the first line {line!r}: it looks like 'plan fdg: delays=2,0 order=backward batches=4'"
        ) from error


def _read_credit(given: dict[str, str]) -> PlanCredit:
    """Build the credit from its name and the options that affect the plan."""
    kind = CREDITS[given.pop("credit", "chain")]
    return kind(**{name: _read_value(given.pop(name)) for name in kind.plan_fields if name in given}, **given)


def _read_value(text: str) -> object:
    return True if text == "yes" else int(text) if text.isdecimal() else text


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(a), int(b)) for a, b in (pair.split("/") for pair in text.split(",")))


def _one_of(*values: str):
    return lambda text: values[values.index(text)]


_READERS: dict[str, Any] = {
    "delays": _numbers,
    "order": _one_of(*ORDERS),
    "weights": _one_of(*WEIGHTS),
    "micro": int,
    "along": int,
    "over_time": _one_of(*OVER_TIME),
    "ahead": _numbers,
    "turns": lambda text: text == "yes",
    "norms": lambda text: text == "yes",
    "queues": _pairs,
    "replicas": int,
    "cell": _one_of("action", "round"),
}
