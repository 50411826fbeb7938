"""A trace: the events of all stages by one clock, and what they add up to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from freewheel._errors import of_type
from freewheel.trace._chrome import read_chrome, write_chrome
from freewheel.trace._event import TraceEvent, messages, stale_updates
from freewheel.trace._recording import DATA, NO_VERSION, Recording

SHARES: tuple[str, ...] = ("compute", "before", "after", "replicas", "data", "other")


@dataclass(frozen=True)
class Trace:
    """What all stages have done, in the order in which they began it.

    Args:
        events: The events.
        meta: What was traced, as plain data: the `method`, its `delays`, the `runtime`, the `devices`, the names of the
            `rows`, and for each letter of a message its direction, `ways`: +1 to the next stage, -1 to the one before,
            0 to other replicas.

    Example:
        >>> from functools import partial
        >>> import torch
        >>> import torch.nn.functional as F
        >>> import freewheel as fw
        >>> stages = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)]
        >>> trainer = fw.Trainer(stages, method="pipedream", loss=F.cross_entropy,
        ...                      optimizer=partial(torch.optim.SGD, lr=0.1))
        >>> loader = [(torch.randn(16, 4), torch.randint(2, (16,))) for _ in range(5)]
        >>> trace = trainer.fit(loader, trace=True).trace
        >>> [event.name for event in trace.events if event.stage == 1 and event.batch == 3 and event.is_compute]
        ['F', 'B', 'U']
        >>> trace.staleness()
        [{0: 1, 1: 4}, {0: 5}]
    """

    events: Sequence[TraceEvent]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, recordings: Iterable[Recording], meta: Mapping[str, Any]) -> Trace:
        """The trace of all recordings; clocks of different hosts are compared by the time of day."""
        recordings = list(recordings)
        if not recordings:
            return cls([], meta)
        offsets = {recording.host: recording.offset for recording in reversed(recordings)}
        first = offsets[recordings[0].host]
        rows = [
            (recording, *row, offsets[recording.host] - first)
            for recording in recordings
            for row in recording.rows.tolist()
        ]
        start = min(begin + shift for *_, begin, _, shift in rows)
        events = [
            TraceEvent(
                stage=recording.stage,
                replica=recording.replica,
                name=recording.names[int(name)],
                batch=int(batch),
                micro=int(micro),
                version=None if version == NO_VERSION else int(version),
                begin=begin + shift - start,
                end=end + shift - start,
            )
            for recording, name, batch, micro, version, begin, end, shift in rows
        ]
        return cls(sorted(events, key=lambda event: (event.begin, event.end)), meta)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` has written."""
        return cls(*read_chrome(Path(path)))

    def save(self, path: str | Path) -> None:
        """Write it in the Chrome format, which Perfetto and Chrome's `about:tracing` open; compressed as `.gz`.

        It has a row for each stage, arrows for messages, and counters of queues and of staleness.
        """
        write_chrome(Path(path), self.events, self.meta)

    @property
    def seconds(self) -> float:
        """The time from the first event to the end of the last."""
        return max((event.end for event in self.events), default=0.0)

    @cached_property
    def stages(self) -> int:
        """The number of stages; of workers, under a method that races."""
        return 1 + max((event.stage for event in self.events), default=-1)

    @cached_property
    def replicas(self) -> int:
        """The number of replicas."""
        return 1 + max((event.replica for event in self.events), default=-1)

    def shares(self) -> list[dict[str, float]]:
        """For each stage, the parts of the time in which it computes or waits, over its replicas.

        `before` and `after` are the stages before and after it: it waits for their messages, or for room in the queue
        to them. `replicas` are those of the same stage, `data` is the loader, `other` the rest: Python, copies of
        messages, under `simulate` the turns of other stages, and under `graph` the loader, too. A stage that does two
        things at once computes, if one of them is a computation.
        """
        spent = [dict.fromkeys(SHARES, 0.0) for _ in range(self.stages)]
        changes: dict[tuple[int, int], list[tuple[float, int, str]]] = {}
        for event in self.events:
            share = self._share(event)
            found = changes.setdefault((event.stage, event.replica), [])
            found += [(event.begin, 1, share), (event.end, -1, share)]
        for (stage, _), found in changes.items():
            under_way, since = dict.fromkeys(SHARES, 0), 0.0
            for moment, change, share in sorted(found):
                first = next((name for name in SHARES if under_way[name] > 0), None)  # a moment counts once
                if first is not None:
                    spent[stage][first] += moment - since
                under_way[share] += change
                since = moment
        whole = self.seconds * self.replicas or 1.0
        out = [{name: each[name] / whole for name in SHARES} for each in spent]
        for shares in out:
            shares["other"] = max(0.0, 1.0 - sum(shares[name] for name in SHARES[:-1]))
        return out

    def _share(self, event: TraceEvent) -> str:
        if event.is_compute:
            return "compute"
        if event.name == DATA:
            return "data"
        way = self.meta.get("ways", {}).get(event.name.strip(">"))
        if not way:
            return "other" if way is None else "replicas"
        return "before" if event.name.startswith(">") == (way > 0) else "after"

    def messages(self) -> list[tuple[TraceEvent, TraceEvent]]:
        """Each send between stages with its receipt; a broadcast of the last stage has several."""
        return list(messages(self.events, self.meta.get("ways", {})))

    def staleness(self) -> list[dict[int, int]]:
        """For each stage, how many batches it has learned from with each staleness.

        That is the number of updates between the forward of a batch and the update with it.
        """
        out: list[Counter[int]] = [Counter() for _ in range(self.stages)]
        for event, late in stale_updates(self.events):
            out[event.stage][late] += 1
        return [dict(sorted(each.items())) for each in out]


def traced_batches(trace: object) -> range | None:
    """The batches that `fit(trace=…)` asks for.

    Example:
        >>> traced_batches(False), traced_batches(range(100, 200)), 10**9 in traced_batches(True)
        (None, range(100, 200), True)
    """
    if isinstance(trace, bool):
        return range(sys.maxsize) if trace else None
    return of_type("trace", trace, range, "give True, or the numbers of batches such as range(100, 200)")
