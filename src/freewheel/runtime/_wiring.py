"""The wires of a run with several processes, and the messages on them.

Neighbouring stages have the channels of the plan. The caller, which reads the loader, sends batch numbers to all stages
(`announce`), inputs to the first, and targets to those that use them. Stages send their snapshots to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor

from freewheel.checkpoint import File
from freewheel.plan import SHARE, Op, Schedule, capacity
from freewheel.runtime._channels import ClosedError, End, Receiver
from freewheel.runtime._interpreter import Snapshot
from freewheel.runtime._replicas import peers
from freewheel.runtime._run import input_name, links, target_name
from freewheel.runtime._world import Wire
from freewheel.stage import Stage

SNAPSHOT, RESULT = "snapshot", "result"  # names of wires to and from the caller
PENDING_SNAPSHOTS = 2  # that a stage may have sent and the caller not read


def wires_of(schedule: Schedule, caller: int, *, prefetch: int, depth: int) -> list[Wire]:
    """All wires of a run, none where both ends are in one process; stage k of replica r has the rank r·K + k."""
    count = schedule.stages
    replicas = [range(first, first + count) for first in range(0, count * schedule.replicas, count)]
    out = []
    for ranks in replicas:
        for boundary, pair in enumerate(pairwise(ranks)):
            for message in (message for message in schedule.messages if message.way):
                sender, receiver = pair if message.way > 0 else pair[::-1]
                name = f"{message.letter}{boundary} {sender}>{receiver}"
                length = capacity(schedule, message.letter, boundary)
                out.append(Wire(name, sender, receiver, length, joins_stages=True))
    for stage, ranks in enumerate(zip(*replicas)):
        for (a, sender), (b, receiver) in permutations(enumerate(ranks), 2):
            name = f"all-reduce {stage} {a} {b}"
            out.append(Wire(name, sender, receiver, capacity(schedule, SHARE.letter, stage), joins_stages=True))
    for rank in (rank for ranks in replicas for rank in ranks if rank != caller):
        out.append(Wire(f"announce {rank}", caller, rank, depth))
        out.append(Wire(f"{SNAPSHOT} {rank}", rank, caller, PENDING_SNAPSHOTS))
        out.append(Wire(f"{RESULT} {rank}", caller, rank, 1))
    for replica, ranks in enumerate(replicas):
        if ranks[0] != caller:
            out.append(Wire(input_name(replica), caller, ranks[0], prefetch))
        for stage, rank in enumerate(ranks):
            if rank != caller and schedule.gets_targets(stage):
                out.append(Wire(target_name(replica, stage), caller, rank, depth))
    return out


def links_of(stage: Stage, ends: Mapping[str, Any]) -> dict[Op, Any]:
    """A stage's ends of the wires to its neighbours and its other replicas, by the op that uses them."""
    words = {tuple(name.split()): end for name, end in ends.items()}
    neighbours = {(w[0][0], int(w[0][1:])): end for w, end in words.items() if w[0][1:].isdigit()}
    replicas = {tuple(map(int, w[1:])): end for w, end in words.items() if w[0] == "all-reduce"}
    return {**links(neighbours, stage), **peers(replicas, stage)}  # pyright: ignore[reportArgumentType]


class RemoteFeed:
    """The announcements of the caller, as the feed of a stage."""

    def __init__(self, wire: Receiver, start: int = 0, *, at_cut: bool = False) -> None:
        """`start` is the first number that is announced; `at_cut` says whether an epoch begins with it."""
        self._wire, self._start = wire, start
        self._cuts: set[int] = {start - 1} if at_cut else set()
        self.closed = False

    def numbers(self, number: int = 0) -> Iterator[int]:
        """The batch numbers from this one on, each as soon as it is announced."""
        yield from range(number, self._start)
        while True:
            number, cut = self._wire.get().tolist()
            if self.closed:
                raise ClosedError
            if number < 0:
                return
            if cut:
                self._cuts.add(number)
            yield number

    def is_cut(self, number: int) -> bool:
        """Whether an epoch ends with this batch."""
        return number in self._cuts


def announcement(number: int, cut: bool) -> Tensor:
    """The message that announces a batch; a number below zero is the end."""
    return torch.tensor([number, cut])


def encode_snapshot(snapshot: Snapshot, *, last: bool = False) -> dict[str, Any]:
    """A snapshot as a tree that can travel; the last one comes after all batches."""
    losses = snapshot.losses
    return {
        "stage": snapshot.stage,
        "batches": snapshot.batches,
        "busy": snapshot.busy,
        "gaps": snapshot.gaps,
        "losses": torch.stack([loss for loss, _ in losses]).cpu() if losses else None,
        "sizes": torch.tensor([size for _, size in losses]),
        "state": snapshot.state,
        "updates": snapshot.updates,
        "saved": [list(file) for file in snapshot.saved],
        "replica": snapshot.replica,
        "last": last,
    }


def decode_snapshot(tree: dict[str, Any]) -> Snapshot:
    """The snapshot that `encode_snapshot` encoded."""
    fields = {name: value for name, value in tree.items() if name not in ("losses", "sizes", "saved", "last")}
    losses = [] if tree["losses"] is None else list(zip(tree["losses"].unbind(), tree["sizes"].tolist()))
    return Snapshot(**fields, losses=losses, saved=tuple(File(*file) for file in tree["saved"]))


def close_all(*ends: Mapping[str, End]) -> None:
    """Close every end."""
    for each in ends:
        for end in each.values():
            end.close()


def release_all(*ends: Mapping[str, End]) -> None:
    """Release every end."""
    for each in ends:
        for end in each.values():
            end.release()
