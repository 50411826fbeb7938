"""Replicas: the samples of a batch in shards, and the all-reduce between the replicas of a stage.

::

    replica 0   shard 0 → stage 0 → stage 1 → …        before update n of stage k, its replicas all-reduce: each sends
    replica 1   shard 1 → stage 0 → stage 1 → …        its gradient to the others, and adds up all in replica order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from freewheel._trees import map_tensors
from freewheel.plan import Schedule
from freewheel.runtime._channels import Broadcast
from freewheel.runtime._micro_batches import split_samples
from freewheel.runtime._reading import Batch


class Peers:
    """The channels between one replica of a stage and the others, for the all-reduce; both ends in one.

    `has_room` and `has_item` are for channels within a process. Senders and receivers are in replica order.
    """

    def __init__(self, replica: int, senders: Sequence[Any], receivers: Sequence[Any]) -> None:
        self._replica, self._others, self._receivers = replica, Broadcast(senders), receivers
        self._own: Any = None

    @property
    def has_room(self) -> bool:
        """Whether `put` would not wait."""
        return self._others.has_room

    @property
    def has_item(self) -> bool:
        """Whether `get` would not wait."""
        return all(receiver.has_item for receiver in self._receivers)

    def put(self, term: Any) -> None:
        """Send this replica's term of the sum to all others."""
        self._own = term
        self._others.put(term)

    def get(self) -> list[Any]:
        """The terms of all replicas, in replica order; this replica's own is the one that was put."""
        terms = [receiver.get() for receiver in self._receivers]
        terms.insert(self._replica, self._own)
        self._own = None
        return terms


def shards(batch: Batch, replicas: int) -> list[tuple[Any, Any, int, float]]:
    """For each replica its input, its target, its number of samples, and the fraction of the batch that they are.

    Shards are copies: where a tensor begins in memory may change the last bit of a result, and in another process it
    would begin elsewhere.
    """
    if replicas == 1:
        return [(batch.x, batch.target, batch.size, 1.0)]
    if batch.size < replicas:
        raise ValueError(
            f"replicas={replicas}, but batch {batch.number} has {batch.size} samples: each replica needs one; give "
            "larger batches, leave a small last one out (drop_last=True), or use fewer replicas"
        )
    xs = split_samples(batch.x, batch.size, replicas, "input", by="replicas")
    targets = split_samples(batch.target, batch.size, replicas, "target", by="replicas")
    return [
        (map_tensors(Tensor.clone, x), map_tensors(Tensor.clone, y), size, fraction)
        for (x, size, fraction), (y, _, _) in zip(xs, targets)
    ]


def titles(schedule: Schedule) -> list[str]:
    """The names of the stages of all replicas in errors, in rank order.

    Example:
        >>> from freewheel.credit import Chain
        >>> titles(Schedule(credit=Chain(), delays=(1, 0))), titles(Schedule(credit=Chain(), delays=(0,), replicas=2))
        (['stage 0', 'stage 1'], ['stage 0, replica 0', 'stage 0, replica 1'])
    """
    stages = range(schedule.stages)
    if schedule.replicas == 1:
        return [f"stage {stage}" for stage in stages]
    return [f"stage {stage}, replica {replica}" for replica in range(schedule.replicas) for stage in stages]
