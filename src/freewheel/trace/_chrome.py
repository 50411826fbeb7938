"""The Chrome trace format: JSON that Perfetto, Chrome's `about:tracing` and others open.

::

    process   replica 0
      thread  stage 0     F 3   ·a>·            >g·   B 1   U 1        slices, with the batch and the version
      thread  stage 1            ╲·>a·   F 3  B 3  ╱g>                 arrows from a send to its receipt
      counter a to stage 1    0  1  0                                  messages in the queue
      counter staleness of stage 0
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from freewheel._files import replacing
from freewheel.trace._event import TraceEvent, messages, row_name, row_of, stale_updates

FORMAT = "freewheel"  # the key of what only we read
MICRO = 1e6
Entry = dict[str, Any]


def write_chrome(path: Path, events: Sequence[TraceEvent], meta: Mapping[str, Any]) -> None:
    """Write events to a file, compressed if its name ends with `.gz`."""
    head = json.dumps({"displayTimeUnit": "ms", "otherData": {FORMAT: meta}})
    with replacing(path) as part, _opened(part, "wt") as file:
        file.write(f'{head[:-1]}, "traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, _entries(events, meta))))
        file.write("\n]}\n")


def read_chrome(path: Path) -> tuple[list[TraceEvent], dict[str, Any]]:
    """The events of a file that `write_chrome` has written, and what was traced."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with _opened(path, "rt") as file:
            content = json.load(file)
        meta = content["otherData"][FORMAT]
        stages = len(meta["rows"])
        events = [_event(entry, stages) for entry in content["traceEvents"] if entry["ph"] == "X"]
    except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error):
        raise ValueError(
            f"{path}: that is not a whole trace that Freewheel has written; remove it, or record it again"
        ) from None
    return sorted(events, key=lambda event: (event.begin, event.end)), meta


def _opened(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")  # pyright: ignore[reportReturnType]
    return path.open(mode, encoding="utf-8")


def _entries(events: Sequence[TraceEvent], meta: Mapping[str, Any]) -> Iterator[Entry]:
    """All entries of a file: names, slices, arrows and counters."""
    rows = sorted({row_of(event, meta) for event in events})
    for replica in sorted({replica for replica, *_ in rows}):
        yield {"ph": "M", "name": "process_name", "pid": replica, "args": {"name": f"replica {replica}"}}
    for index, row in enumerate(rows):
        place = {"pid": row[0], "tid": _thread(row, meta)}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row_name(row, meta)}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": index}}
    for event in events:
        yield _slice(event, _thread(row_of(event, meta), meta))
    pairs = list(messages(events, meta.get("ways", {})))
    for number, (send, receipt) in enumerate(pairs):
        shared = {"name": send.name.strip(">"), "cat": "message", "id": number}
        begin, end = (_thread(row_of(event, meta), meta) for event in (send, receipt))
        yield {"ph": "s", **shared, "pid": send.replica, "tid": begin, "ts": _micro(send.begin)}
        yield {"ph": "f", "bp": "e", **shared, "pid": receipt.replica, "tid": end, "ts": _micro(receipt.end)}
    yield from _queues(pairs)
    yield from _staleness(events)


def _thread(row: tuple[int, int, int], meta: Mapping[str, Any]) -> int:
    """The number of a row in the format: those of forwards alone come after all stages."""
    _, stage, beside = row
    return stage + beside * len(meta["rows"])


def _slice(event: TraceEvent, thread: int) -> Entry:
    begin, end = _micro(event.begin), _micro(event.end)
    number = f"{event.batch}.{event.micro}" if event.micro else f"{event.batch}"
    return {
        "ph": "X",
        "name": f"{event.name} {number}",
        "cat": "compute" if event.is_compute else "wait",
        "pid": event.replica,
        "tid": thread,
        "ts": begin,
        "dur": round(end - begin, 3),
        "args": {"op": event.name, "batch": event.batch, "micro": event.micro, "version": event.version},
    }


def _event(entry: Entry, stages: int) -> TraceEvent:
    given, begin = entry["args"], entry["ts"]
    place = entry["tid"] % stages, entry["pid"], given["op"], given["batch"], given["micro"], given["version"]
    return TraceEvent(*place, begin / MICRO, (begin + entry["dur"]) / MICRO)


def _queues(pairs: Iterable[tuple[TraceEvent, TraceEvent]]) -> Iterator[Entry]:
    """The number of messages that are pending in each queue, whenever it changes."""
    changes: dict[tuple[int, str, int], list[tuple[float, int]]] = {}
    for send, receipt in pairs:
        found = changes.setdefault((receipt.replica, send.name[0], receipt.stage), [])
        found += [(min(send.end, receipt.end), 1), (receipt.end, -1)]  # what was received had been sent
    for (replica, letter, stage), found in changes.items():
        pending = 0
        for moment, change in sorted(found, key=lambda each: (each[0], -each[1])):
            pending += change
            name = f"{letter} to stage {stage}"
            yield {"ph": "C", "name": name, "pid": replica, "ts": _micro(moment), "args": {"pending": pending}}


def _staleness(events: Sequence[TraceEvent]) -> Iterator[Entry]:
    for event, late in stale_updates(events):
        name, moment = f"staleness of stage {event.stage}", _micro(event.end)
        yield {"ph": "C", "name": name, "pid": event.replica, "ts": moment, "args": {"updates": late}}


def _micro(seconds: float) -> float:
    return round(seconds * MICRO, 3)
