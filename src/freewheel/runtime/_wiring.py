"""The wires of a run, and each stage's ends of them.

Stages have the channels of the plan. The caller, which reads the loader, sends batch numbers to all stages
(`announce`), inputs to the first, and targets to those that use them. Stages send their snapshots to the caller.
Stage k of replica r has the rank r·K + k.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations, product
from typing import Any

from freewheel.plan import SHARE, Op, Schedule, capacity, routes
from freewheel.runtime._channels import Broadcast, End
from freewheel.runtime._replicas import Peers
from freewheel.runtime._world import Wire
from freewheel.stage import Stage

ANNOUNCE, SNAPSHOT, RESULT = "announce", "snapshot", "result"  # names of wires to and from the caller
PREFETCH = 2  # batches that are pending in front of the first stage
PENDING_SNAPSHOTS = 2  # that a stage may have sent and the caller not read


def input_name(replica: int) -> str:
    """The name of the wire of a replica's inputs."""
    return f"input {replica}"


def target_name(replica: int, stage: int) -> str:
    """The name of the wire of a stage's targets."""
    return f"target {replica} {stage}"


def _message_name(replica: int, letter: str, boundary: int) -> str:
    return f"{letter} {replica} {boundary}"


def _all_reduce_name(stage: int, sender: int, receiver: int) -> str:
    return f"all-reduce {stage} {sender} {receiver}"


def depth_of(schedule: Schedule) -> int:
    """The most batches that a pipeline holds; a target is pending until its batch has come through."""
    return PREFETCH + 1 + sum(a for a, _ in schedule.lengths()) + schedule.stages + schedule.delays[0]


def stage_wires(schedule: Schedule, caller: int, prefetch: int = PREFETCH) -> list[Wire]:
    """The wires of a run's messages and batches; `prefetch` is the capacity of inputs."""
    count, depth, out = schedule.stages, depth_of(schedule), list[Wire]()
    messages = [message for message in schedule.messages if message.way]
    for replica, first in enumerate(range(0, count * schedule.replicas, count)):
        for boundary, message in product(range(count - 1), messages):
            sender, receiver = sorted((first + boundary, first + boundary + 1), reverse=message.way < 0)
            sender = first + count - 1 if message.broadcast else sender
            length = capacity(schedule, message.letter, boundary)
            name = _message_name(replica, message.letter, boundary)
            out.append(Wire(name, sender, receiver, length, joins_stages=True))
        out.append(Wire(input_name(replica), caller, first, prefetch))
        targets = filter(schedule.gets_targets, range(count))
        out += [Wire(target_name(replica, stage), caller, first + stage, depth) for stage in targets]
    for stage, (a, b) in product(range(count), permutations(range(schedule.replicas), 2)):
        length = capacity(schedule, SHARE.letter, stage)
        name = _all_reduce_name(stage, a, b)
        out.append(Wire(name, a * count + stage, b * count + stage, length, joins_stages=True))
    return out


def wires_of(schedule: Schedule, caller: int) -> list[Wire]:
    """All wires of a run with several processes; the caller reads its own stage's snapshots directly."""
    out, depth = stage_wires(schedule, caller), depth_of(schedule)
    for rank in range(schedule.stages * schedule.replicas):
        if rank != caller:
            out.append(Wire(f"{ANNOUNCE} {rank}", caller, rank, depth))
            out.append(Wire(f"{SNAPSHOT} {rank}", rank, caller, PENDING_SNAPSHOTS))
            out.append(Wire(f"{RESULT} {rank}", caller, rank, 1))
    return out


def links_of(stage: Stage, ends: Mapping[str, Any]) -> dict[Op, Any]:
    """A stage's ends of the wires to other stages and its other replicas, by the op that uses them."""
    k, own = stage.index, stage.replica
    links: dict[Op, Any] = {}
    for op, found in routes(stage.schedule, k).items():
        if op.channel != SHARE.letter:
            known = [ends[_message_name(own, *route)] for route in found]
            links[op] = known[0] if len(known) == 1 else Broadcast(known)
    others = [replica for replica in range(stage.schedule.replicas) if replica != own]
    if others:
        senders = [ends[_all_reduce_name(k, own, other)] for other in others]
        peers = Peers(own, senders, [ends[_all_reduce_name(k, other, own)] for other in others])
        links |= {SHARE.send: peers, SHARE.receive: peers}
    return links


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
