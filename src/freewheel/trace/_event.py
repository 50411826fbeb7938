"""The entries of a trace, and which of them belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

BESIDE = frozenset({"F", ">a", "a>"})  # what a stage may do beside all else: `overlap=True`


class TraceEvent(NamedTuple):
    """Something that a stage has done.

    Args:
        stage: The stage; under a method that races, the worker.
        replica: The replica of the stage.
        name: The text of the plan's op: `F` forward, `R` recomputation, `B` backward, `U` update, `>a` receipt of an
            activation, `a>` its send, `>g` and `g>` for gradients, and so on; or `data`, the wait for a batch.
        batch: The number of the batch in this fit.
        micro: The micro-batch.
        version: The version of the weights that a computation saw; None for what is no computation.
        begin: Seconds since the first event of the trace.
        end: The same for its end.

    Example:
        >>> TraceEvent(stage=1, replica=0, name="F", batch=3, micro=0, version=2, begin=0.5, end=0.75).seconds
        0.25
    """

    stage: int
    replica: int
    name: str
    batch: int
    micro: int
    version: int | None
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin

    @property
    def is_compute(self) -> bool:
        """Whether it is a computation, and not a message or a wait for data."""
        return self.name.isupper()


def row_of(event: TraceEvent, meta: Mapping[str, Any]) -> tuple[int, int, int]:
    """The row of an event: its replica, its stage, and 1 for what the stage does beside all else.

    Example:
        >>> forward = TraceEvent(stage=1, replica=0, name="F", batch=3, micro=0, version=2, begin=0.5, end=0.75)
        >>> row_of(forward, {}), row_of(forward, {"overlaps": [0, 1]})
        ((0, 1, 0), (0, 1, 1))
    """
    beside = event.name in BESIDE and event.stage in meta.get("overlaps", ())
    return event.replica, event.stage, int(beside)


def row_name(row: tuple[int, int, int], meta: Mapping[str, Any]) -> str:
    """What a row is called, but for its replica."""
    _, stage, beside = row
    name = meta["rows"][stage]
    return f"{name}, forwards" if beside else name


def stale_updates(events: Iterable[TraceEvent]) -> Iterator[tuple[TraceEvent, int]]:
    """Each update whose forward is among the events, with the updates between the two."""
    seen: dict[tuple[int, int, int], int] = {}
    for event in events:
        key = event.stage, event.replica, event.batch
        if event.version is None:
            continue
        if event.name == "F":
            seen.setdefault(key, event.version)
        elif event.name == "U" and key in seen:
            yield event, event.version - seen[key]


def messages(events: Iterable[TraceEvent], ways: Mapping[str, int]) -> Iterator[tuple[TraceEvent, TraceEvent]]:
    """Each send with its receipt; a broadcast of the last stage is received by several."""
    events = list(events)
    last = max((event.stage for event in events), default=0)
    sent = {(e.name[0], e.replica, e.stage, e.batch, e.micro): e for e in events if e.name.endswith(">")}
    for event in events:
        letter = event.name[1:]
        if not event.name.startswith(">") or not ways.get(letter):
            continue
        for stage in (event.stage - ways[letter], last):
            send = sent.get((letter, event.replica, stage, event.batch, event.micro))
            if send is not None:
                yield send, event
                break
