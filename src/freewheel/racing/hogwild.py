"""`hogwild`, `lap-sgd`, `lpp-sgd`: workers that process whole batches on shared weights.

Papers: Recht et al., Hogwild!: a lock-free approach to parallelizing stochastic gradient descent, 2011; Chatterjee et
al., Scaling the wild: decentralizing Hogwild!-style shared-memory SGD, 2022.

A worker takes a batch forward and back, reading the shared weights as they are at each moment, and then updates all
layers, without a lock. Each group of workers has its own copy of the weights, θ^g:

    each update                     θ^g ← θ^g - lr · gradient of the worker's batch       g = 0 … G-1
    after H updates of each group   θ^0 = … = θ^{G-1} ← (θ^0 + … + θ^{G-1}) / G           a barrier

| name      | groups G | an update changes                               |
| --------- | -------- | ----------------------------------------------- |
| `hogwild` | 1        | all layers                                      |
| `lap-sgd` | G        | all layers                                      |
| `lpp-sgd` | G        | one of P partitions; the backward ends there    |

Batch n goes to group n mod G. With one worker in each group, `lap-sgd` is local SGD.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from freewheel._errors import one_of, whole_number
from freewheel.racing._copy import UpdateCounts, WeightCopy
from freewheel.racing._interleaving import Interleaving
from freewheel.racing._local import BatchQueue, LocalPool
from freewheel.racing._memory import Stepper, aliased, all_tensors, stages_on
from freewheel.racing._method import Racing
from freewheel.racing._pool import BuildPool, WorkerGroups
from freewheel.racing._processes import ProcessPool
from freewheel.racing._worker import BatchPass, Worker
from freewheel.runtime import Run
from freewheel.stage import copied


@dataclass(frozen=True, kw_only=True)
class WholeBatch(Racing):
    """Base of `Hogwild`, `LAPSGD` and `LPPSGD`: workers that process whole batches, in groups."""

    runtimes: ClassVar[tuple[str, ...]] = ("simulate", "threads", "processes")
    default_runtime: ClassVar[str] = "processes"

    workers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("workers", self.workers, least=1)

    @property
    @abstractmethod
    def worker_groups(self) -> WorkerGroups:
        """The method as groups of workers."""

    @property
    def copies(self) -> int:
        """One for each group."""
        return self.worker_groups.groups

    @property
    def worker_names(self) -> list[str]:
        """Group by group."""
        return self.worker_groups.names()

    def pool(self, runtime: str) -> BuildPool:
        """Groups of processes, or of threads."""
        return partial(ProcessPool if runtime == "processes" else GroupPool, self.worker_groups)


@dataclass(frozen=True, kw_only=True)
class Hogwild(WholeBatch):
    """Workers on shared weights; each updates all layers after its backward, without a lock.

    Args:
        workers: The number of workers.
        record: A file to which `fit` writes the order of steps.
        replay: A recording that `simulate` follows instead of the seed.

    Example:
        >>> Hogwild().worker_groups
        WorkerGroups(groups=1, workers=2, average_every=0, partitions=1, order='turn')
    """

    name: ClassVar[str] = "hogwild"

    workers: int = 2

    @property
    def worker_groups(self) -> WorkerGroups:
        """One group."""
        return WorkerGroups(workers=self.workers)


@dataclass(frozen=True, kw_only=True)
class LAPSGD(WholeBatch):
    """Groups of workers, each with its own copy of the weights; the copies are averaged every few updates.

    Args:
        groups: The number of groups.
        workers: Workers in each group.
        average_every: Updates of each group between two averages; the end of an epoch averages, too.
        record: A file to which `fit` writes the order of steps.
        replay: A recording that `simulate` follows instead of the seed.
    """

    name: ClassVar[str] = "lap-sgd"

    groups: int = 2
    average_every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("groups", self.groups, least=1)
        whole_number("average_every", self.average_every, least=1)

    @property
    def worker_groups(self) -> WorkerGroups:
        """Groups that update all layers."""
        return WorkerGroups(self.groups, self.workers, self.average_every)


@dataclass(frozen=True, kw_only=True)
class LPPSGD(WholeBatch):
    """Like `lap-sgd`, but an update changes only one partition of the layers, and the backward ends there.

    The layers, in network order, are divided into partitions of as equal a number of layers as possible.

    Args:
        groups: The number of groups.
        workers: Workers in each group.
        average_every: Updates of each group between two averages; the end of an epoch averages, too.
        partitions: The number of partitions.
        order: Whether a group's batches take the partitions in `turn`, or each batch one at `random`, from the seed.
        record: A file to which `fit` writes the order of steps.
        replay: A recording that `simulate` follows instead of the seed.
    """

    name: ClassVar[str] = "lpp-sgd"

    groups: int = 2
    average_every: int = 8
    partitions: int = 2
    order: Literal["turn", "random"] = "turn"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("groups", self.groups, least=1)
        whole_number("average_every", self.average_every, least=1)
        whole_number("partitions", self.partitions, least=1)
        one_of("order", self.order, ("turn", "random"))

    @property
    def worker_groups(self) -> WorkerGroups:
        """Groups that update one partition at a time."""
        return WorkerGroups(self.groups, self.workers, self.average_every, self.partitions, self.order)


class GroupPool(LocalPool):
    """Groups of threads; each group shares a copy of the weights and a queue of batches."""

    def __init__(self, groups: WorkerGroups, run: Run, interleaving: Interleaving) -> None:
        super().__init__(groups, run, interleaving)
        layers, names = self.layers, groups.names()
        others = [stages_on(run.blueprints, copied(self.modules)) for _ in range(groups.groups - 1)]
        self._copies = [run.stages, *others]
        self._queues = [BatchQueue() for _ in range(groups.groups)]
        rows = [0] * (len(names) * len(layers))
        for index, name in enumerate(names):
            group = index // groups.workers
            copy, queue = self._copies[group], self._queues[group]
            # The first worker's optimizer state is the trainer's; every other worker has a copy of its own.
            own = stages_on(run.blueprints, aliased([stage.module for stage in copy]))
            stepper = Stepper(own, run.stages, layers, shared=index == 0)
            changes = UpdateCounts(rows, len(layers), groups.members(group))
            weights = WeightCopy(group, [stage.module for stage in copy], layers, changes)
            worker = Worker(name, index, layers, interleaving, weights, stepper)
            batch_pass = BatchPass(copy, layers, run.spec.before, interleaving)
            self.workers.append((worker, partial(self._work, worker, batch_pass, queue)))

    def copies(self) -> Sequence[Iterable[Tensor]]:
        """One per group."""
        return [all_tensors(stage.module for stage in stages) for stages in self._copies]

    def _queue(self, number: int) -> BatchQueue:
        return self._queues[number % self.groups.groups]

    def _work(self, worker: Worker, batch_pass: BatchPass, queue: BatchQueue) -> None:
        def over() -> bool:
            return self._over and not queue.items

        first, seed = self.run.spec.before.batches, self.run.config.seed
        while (batch := self.take(worker, queue, over)) is not None:
            worker.forward(batch_pass, batch)
            partition = self.groups.partition(first + batch.number, len(self.layers), seed)
            worker.backward(batch_pass, layerwise=False, partition=partition)
            self.done(worker, batch)
