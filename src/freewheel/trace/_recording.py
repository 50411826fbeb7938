"""What one stage has recorded: rows of numbers, which travel between processes like any tensor."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

DATA = "data"  # the name of a wait for a batch
NO_VERSION = -1


class Row(NamedTuple):
    """An event with the marks of a clock, or the times they stand for."""

    name: str
    batch: int
    micro: int
    version: int | None
    begin: Any
    end: Any


@dataclass(frozen=True)
class Recording:
    """The events of one stage since the cut before.

    Args:
        stage: The stage, or the worker of a race.
        replica: Its replica.
        host: What has the same clock, in all processes.
        offset: The time of day at which that clock was zero.
        names: The names of events.
        rows: For each event: the index of its name, batch, micro-batch, version, begin and end by the clock.
    """

    stage: int
    replica: int
    host: str
    offset: float
    names: tuple[str, ...]
    rows: Tensor

    @classmethod
    def of(cls, stage: int, replica: int, rows: Iterable[Row]) -> Recording:
        """The recording of rows whose times are seconds of `time.perf_counter`."""
        rows = list(rows)
        names = tuple(dict.fromkeys(row.name for row in rows))
        index = {name: i for i, name in enumerate(names)}
        known = ((r.batch, r.micro, NO_VERSION if r.version is None else r.version, r.begin, r.end) for r in rows)
        numbers = [(index[row.name], *each) for row, each in zip(rows, known)]
        table = torch.tensor(numbers, dtype=torch.float64).reshape(len(numbers), 6)
        return cls(stage, replica, host(), time.time() - time.perf_counter(), names, table)

    def encode(self) -> dict[str, Any]:
        """The recording as a tree that can travel."""
        return {**vars(self), "names": list(self.names)}

    @classmethod
    def decode(cls, tree: dict[str, Any]) -> Recording:
        """The recording that `encode` encoded."""
        return cls(**{**tree, "names": tuple(tree["names"])})


@cache
def host() -> str:
    """An id that all processes on one running system share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
