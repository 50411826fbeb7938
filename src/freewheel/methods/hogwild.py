"""`hogwild`, `lap-sgd`, `lpp-sgd`: workers that go through whole batches, racing on shared weights.

Papers: Recht et al., Hogwild!: a lock-free approach to parallelizing stochastic gradient descent, 2011; Chatterjee et
al., Scaling the wild: decentralizing Hogwild!-style shared-memory SGD, 2022.

A worker takes a batch through the network and back, reading the shared weights as they are at each moment, and then
makes one update of all layers, without a lock. Groups of workers have a copy of the weights each, θ^g:

    each update                     θ^g ← θ^g - lr · gradient of the worker's batch       g = 0 … G-1
    after H updates of each group   θ^0 = … = θ^{G-1} ← (θ^0 + … + θ^{G-1}) / G

| name      | groups G | an update is of                              |
| --------- | -------- | -------------------------------------------- |
| `hogwild` | 1        | all layers                                   |
| `lap-sgd` | G        | all layers                                   |
| `lpp-sgd` | G        | one of P parts; the backward ends with it    |

Batch n goes to group n mod G. With one worker in each group, `lap-sgd` is local SGD.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from freewheel._errors import unknown, whole_number
from freewheel.methods._racing import Racing

ORDERS = ("turn", "random")


class Form(NamedTuple):
    """What makes a method of this family: groups of workers, how often they meet, and the parts of an update."""

    groups: int = 1
    workers: int = 1  # in each group
    every: int = 0  # updates of each group between two averages; 0: there is nothing to average
    parts: int = 1
    order: str = "turn"


@dataclass(frozen=True, kw_only=True)
class Wild(Racing):
    """What all three have in common.

    Args:
        workers: Workers in each group.
    """

    runtimes: ClassVar[tuple[str, ...]] = ("simulate", "threads", "processes")

    workers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("workers", self.workers, least=1)

    @property
    @abstractmethod
    def form(self) -> Form:
        """The method in these terms."""

    @property
    def total_workers(self) -> int:
        """Those of all groups."""
        return self.form.groups * self.workers


@dataclass(frozen=True, kw_only=True)
class Hogwild(Wild):
    """Workers on shared weights, each updating all layers after its backward, without a lock.

    Args:
        workers: How many.
        record: A file to which `fit` writes the order of steps that came about.
        replay: Such a file, for `runtime="simulate"` to follow.

    Example:
        >>> Hogwild().form
        Form(groups=1, workers=2, every=0, parts=1, order='turn')
    """

    name: ClassVar[str] = "hogwild"

    workers: int = 2

    @property
    def form(self) -> Form:
        """One group."""
        return Form(workers=self.workers)


@dataclass(frozen=True, kw_only=True)
class LAPSGD(Wild):
    """Groups of workers, each group on a copy of the weights; the copies are averaged after every few updates.

    Args:
        groups: How many groups, or devices.
        workers: Workers in each group.
        average_every: Updates that each group makes between two averages; one is taken at the end of an epoch, too.
        record: A file to which `fit` writes the order of steps that came about.
        replay: Such a file, for `runtime="simulate"` to follow.
    """

    name: ClassVar[str] = "lap-sgd"

    groups: int = 2
    average_every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self.groups, self.average_every)

    @property
    def form(self) -> Form:
        """Updates of all layers."""
        return Form(self.groups, self.workers, self.average_every)


@dataclass(frozen=True, kw_only=True)
class LPPSGD(Wild):
    """As `lap-sgd`, but an update is of one part of the layers alone, and the backward ends there.

    The layers, in the order of the network, are cut into parts as even in number as can be.

    Args:
        groups: How many groups, or devices.
        workers: Workers in each group.
        average_every: Updates that each group makes between two averages; one is taken at the end of an epoch, too.
        parts: How many parts the layers are cut into.
        order: Whether a group's batches take the parts in `turn`, or each its own at `random`, drawn from the seed.
        record: A file to which `fit` writes the order of steps that came about.
        replay: Such a file, for `runtime="simulate"` to follow.
    """

    name: ClassVar[str] = "lpp-sgd"

    groups: int = 2
    average_every: int = 8
    parts: int = 2
    order: Literal["turn", "random"] = "turn"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self.groups, self.average_every)
        whole_number("parts", self.parts, least=1)
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)

    @property
    def form(self) -> Form:
        """Updates of one part."""
        return Form(self.groups, self.workers, self.average_every, self.parts, self.order)


def check_groups(groups: int, average_every: int) -> None:
    """Whole numbers from 1 on."""
    whole_number("groups", groups, least=1)
    whole_number("average_every", average_every, least=1)
