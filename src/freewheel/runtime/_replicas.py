"""Replicas: the samples of a batch shared out to them, and what the replicas of a stage tell each other.

::

    replica 0   shard 0 → stage 0 → stage 1 → …        before update n of stage k, each replica of it sends its share
    replica 1   shard 1 → stage 0 → stage 1 → …        to the others, and adds up all of them in the order of replicas
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from freewheel.plan import SHARE, Op, Schedule
from freewheel.runtime._channels import Channel, Receiver, Sender
from freewheel.runtime._feed import Batch
from freewheel.runtime._pieces import cut_in_samples
from freewheel.stage import Stage


class Peers:
    """A stage's channels to and from the same stage of the other replicas; both ends in one.

    Args:
        replica: The stage's own.
        senders: To each other replica, by its number.
        receivers: From each.
    """

    def __init__(self, replica: int, senders: Mapping[int, Sender], receivers: Mapping[int, Receiver]) -> None:
        self._replica, self._senders, self._receivers = replica, senders, receivers
        self._own: Any = None

    @property
    def has_room(self) -> bool:
        """Whether `put` would go through at once; for channels within a process."""
        return all(sender.has_room for sender in self._senders.values() if isinstance(sender, Channel))

    @property
    def has_item(self) -> bool:
        """Whether `get` would go through at once; likewise."""
        return all(receiver.has_item for receiver in self._receivers.values() if isinstance(receiver, Channel))

    def put(self, share: Any) -> None:
        """Sends a share to all the others."""
        self._own = share
        for sender in self._senders.values():
            sender.put(share)

    def get(self) -> list[Any]:
        """The shares of all replicas, in their order; the own one is as it was put."""
        own, self._own = self._own, None
        return [
            own if replica == self._replica else self._receivers[replica].get()
            for replica in range(len(self._receivers) + 1)
        ]


def shards(batch: Batch, replicas: int) -> list[tuple[Any, Any, int, float]]:
    """For each replica its input, its target, how many samples these are, and their part of the batch.

    Shards are copies: where a tensor begins in memory may change the last bit of what is made of it, and in another
    process it would begin elsewhere.
    """
    if replicas == 1:
        return [(batch.x, batch.target, batch.size, 1.0)]
    if batch.size < replicas:
        raise ValueError(
            f"replicas={replicas}, but batch {batch.number} has {batch.size} samples: each replica needs one; give "
            "larger batches, leave a small last one out (drop_last=True), or use fewer replicas"
        )
    xs = cut_in_samples(batch.x, batch.size, replicas, "input", by="replicas")
    targets = cut_in_samples(batch.target, batch.size, replicas, "target", by="replicas")
    return [(_copied(x), _copied(y), size, part) for (x, size, part), (y, _, _) in zip(xs, targets)]


def _copied(tree: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def peers(channels: Mapping[tuple[int, int, int], Any], stage: Stage) -> dict[Op, Peers]:
    """A stage's channels by the op that uses them, out of all by stage, sending and receiving replica."""
    if stage.schedule.replicas == 1:
        return {}
    own = {key[1:]: channel for key, channel in channels.items() if key[0] == stage.index}
    senders = {b: channel for (a, b), channel in own.items() if a == stage.replica}
    both = Peers(stage.replica, senders, {a: channel for (a, b), channel in own.items() if b == stage.replica})
    return {SHARE.send: both, SHARE.receive: both}


def titles(schedule: Schedule) -> list[str]:
    """What the stages of all replicas are called in errors, in the order of their ranks.

    Example:
        >>> from freewheel.credit import Chain
        >>> titles(Schedule(credit=Chain(), delays=(1, 0))), titles(Schedule(credit=Chain(), delays=(0,), replicas=2))
        (['stage 0', 'stage 1'], ['stage 0, replica 0', 'stage 0, replica 1'])
    """
    stages = range(schedule.stages)
    if schedule.replicas == 1:
        return [f"stage {stage}" for stage in stages]
    return [f"stage {stage}, replica {replica}" for replica in range(schedule.replicas) for stage in stages]
