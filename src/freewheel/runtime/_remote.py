"""A stage whose caller is in another process: its feed, its interpreter, and its snapshots as messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.checkpoint import File
from freewheel.runtime._channels import ClosedError, Receiver, Sender
from freewheel.runtime._cut import Snapshot
from freewheel.runtime._feed import Start
from freewheel.runtime._interpreter import Interpreter
from freewheel.runtime._spec import RunSpec
from freewheel.runtime._wiring import ANNOUNCE, SNAPSHOT
from freewheel.stage import Stage
from freewheel.trace import Recording

ENCODED = ("losses", "sizes", "saved", "recordings", "last")  # what travels in another form


class RemoteFeed:
    """The announcements of the caller, as the feed of a stage."""

    def __init__(self, wire: Receiver, start: Start) -> None:
        self._wire, self._start = wire, start.batch
        self._cuts: set[int] = {start.batch - 1} if start.first == start.batch else set()
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


def remote_interpreter(
    stage: Stage, rank: int, spec: RunSpec, senders: Mapping[str, Sender], receivers: Mapping[str, Receiver]
) -> Interpreter:
    """The interpreter of a stage that the caller feeds, and that sends its snapshots there."""
    feed, snapshots = RemoteFeed(receivers[f"{ANNOUNCE} {rank}"], spec.start), senders[f"{SNAPSHOT} {rank}"]
    ends = {**senders, **receivers}
    return Interpreter(stage, feed, ends, spec, lambda snapshot: snapshots.put(encode_snapshot(snapshot)))


def encode_snapshot(snapshot: Snapshot, *, last: bool = False) -> dict[str, Any]:
    """A snapshot as a tree that can travel; the last one comes after all batches."""
    losses = snapshot.losses
    return {
        **vars(snapshot),
        "losses": torch.stack([loss for loss, _ in losses]).cpu() if losses else None,
        "sizes": torch.tensor([size for _, size in losses]),
        "saved": [list(file) for file in snapshot.saved],
        "recordings": [recording.encode() for recording in snapshot.recordings],
        "last": last,
    }


def decode_snapshot(tree: dict[str, Any]) -> Snapshot:
    """The snapshot that `encode_snapshot` encoded."""
    fields = {name: value for name, value in tree.items() if name not in ENCODED}
    losses = [] if tree["losses"] is None else list(zip(tree["losses"].unbind(), tree["sizes"].tolist()))
    saved, recordings = (File(*file) for file in tree["saved"]), map(Recording.decode, tree["recordings"])
    return Snapshot(**fields, losses=losses, saved=tuple(saved), recordings=tuple(recordings))
