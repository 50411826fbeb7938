"""Which wires a run of several processes has, and what travels on them.

Between neighbours the channels of the plan. From the caller, who reads the loader, to the stages: the numbers of the
batches (`announce`), inputs to the first stage and targets to those that learn from them; and back to him the stages'
parts of the cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor

from freewheel.checkpoint import File
from freewheel.plan import SHARE, Op, Schedule, capacity, routes
from freewheel.runtime._channels import ClosedError, Receiver, Sender
from freewheel.runtime._interpreter import Part
from freewheel.runtime._replicas import peers
from freewheel.runtime._run import input_of, target_of
from freewheel.runtime._world import Wire
from freewheel.stage import Stage

CUTS_AT_A_TIME = 2  # parts that wait for the caller before a stage does


def wires_of(schedule: Schedule, caller: int, *, prefetch: int, depth: int) -> list[Wire]:
    """All wires of a run whose stages are in processes of their own; none where both ends are in one process.

    The stages of replica r have the ranks from r·K on.
    """
    count = schedule.stages
    teams = [range(first, first + count) for first in range(0, count * schedule.replicas, count)]
    out = []
    for ranks in teams:
        for boundary, pair in enumerate(pairwise(ranks)):
            for message in (message for message in schedule.messages if message.way):
                sender, receiver = pair if message.way > 0 else pair[::-1]
                name, length = (
                    f"{message.letter}{boundary} {sender}>{receiver}",
                    capacity(schedule, message.letter, boundary),
                )
                out.append(Wire(name, sender, receiver, length, joins_stages=True))
    for stage, ranks in enumerate(zip(*teams)):
        for (a, sender), (b, receiver) in permutations(enumerate(ranks), 2):
            name = f"share {stage} {a} {b}"
            out.append(Wire(name, sender, receiver, capacity(schedule, SHARE.letter, stage), joins_stages=True))
    for rank in (rank for ranks in teams for rank in ranks if rank != caller):
        out.append(Wire(f"announce {rank}", caller, rank, depth))
        out.append(Wire(f"part {rank}", rank, caller, CUTS_AT_A_TIME))
        out.append(Wire(f"told {rank}", caller, rank, 1))
    for replica, ranks in enumerate(teams):
        if ranks[0] != caller:
            out.append(Wire(input_of(replica), caller, ranks[0], prefetch))
        for stage, rank in enumerate(ranks):
            if rank != caller and schedule.gets_targets(stage):
                out.append(Wire(target_of(replica, stage), caller, rank, depth))
    return out


def links_of(stage: Stage, ends: Mapping[str, Any]) -> dict[Op, Any]:
    """A stage's ends of the wires to its neighbours and to its replicas, by the op that uses them."""
    found = {name.split(" ")[0]: end for name, end in ends.items() if " " in name and name.split(" ")[0][1:].isdigit()}
    shares = {tuple(map(int, name.split()[1:])): end for name, end in ends.items() if name.startswith("share ")}
    out: dict[Op, Any] = {**peers(shares, stage)}  # pyright: ignore[reportArgumentType]
    for op, (letter, boundary) in routes(stage.schedule, stage.index).items():
        if f"{letter}{boundary}" in found:
            out[op] = found[f"{letter}{boundary}"]
    return out


class RemoteFeed:
    """What a stage learns of the batches from the caller."""

    def __init__(self, wire: Receiver, start: int = 0, *, at_cut: bool = False) -> None:
        """`start` is the first number that is announced; `at_cut` tells whether an epoch begins with it."""
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
    """A batch, as the stages hear of it; a number below zero is the end."""
    return torch.tensor([number, cut])


def packed(part: Part, *, last: bool = False) -> dict[str, Any]:
    """A part as a tree that can travel; the last one comes after all batches."""
    losses = torch.stack([loss for loss, _ in part.losses]).cpu() if part.losses else None
    sizes = torch.tensor([size for _, size in part.losses])
    numbers = {"stage": part.stage, "batches": part.batches, "busy": part.busy, "gaps": part.gaps}
    numbers["replica"] = part.replica
    kept = {"state": part.state, "updates": part.updates, "saved": [list(file) for file in part.saved]}
    return {**numbers, "losses": losses, "sizes": sizes, **kept, "last": last}


def unpacked(tree: dict[str, Any]) -> Part:
    """The part that travelled so."""
    losses = [] if tree["losses"] is None else list(zip(tree["losses"].unbind(), tree["sizes"].tolist()))
    saved = tuple(File(*file) for file in tree["saved"])
    numbers = tree["stage"], tree["batches"], tree["busy"], tree["gaps"]
    return Part(*numbers, losses, tree["state"], tree["updates"], saved, tree["replica"])


def close_all(senders: Mapping[str, Sender], receivers: Mapping[str, Receiver]) -> None:
    """Closes every end."""
    for end in (*senders.values(), *receivers.values()):
        end.close()


def release_all(senders: Mapping[str, Sender], receivers: Mapping[str, Receiver]) -> None:
    """Gives back what all ends hold of the system."""
    for end in (*senders.values(), *receivers.values()):
        end.release()
