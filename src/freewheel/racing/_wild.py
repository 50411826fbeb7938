"""`hogwild`, `lap-sgd`, `lpp-sgd`: workers that take whole batches, in groups with a copy of the weights each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from freewheel._seeds import seed_of
from freewheel.methods import Form, Wild
from freewheel.racing._counts import Versions
from freewheel.racing._field import END, Field, Inbox, Make
from freewheel.racing._layers import Layer, aliased, in_parts
from freewheel.racing._pass import Pass
from freewheel.racing._stepper import Stepper, average
from freewheel.racing._turns import Exchange, Turns
from freewheel.racing._worker import Worker
from freewheel.runtime import Batch, Run
from freewheel.stage import Stage

DRAWS_OF_PARTS = 1


def names(form: Form) -> list[str]:
    """The workers, group by group."""
    if form.groups == 1:
        return [f"worker {i}" for i in range(form.workers)]
    return [f"worker {i} of group {g}" for g in range(form.groups) for i in range(form.workers)]


class Parts:
    """Which layers a batch updates.

    Args:
        form: The method.
        layers: How many layers there are.
        seed: What parts at random are drawn from.
    """

    def __init__(self, form: Form, layers: int, seed: int) -> None:
        if form.parts > layers:
            raise ValueError(f"parts={form.parts}: the network has {layers} layers with weights; give {layers} or less")
        self._form, self._seed = form, seed
        self._parts = in_parts(layers, form.parts)

    def of(self, batch: int) -> range:
        """The layers of a batch, counted from the first one of all runs."""
        if self._form.order == "random":
            return random.Random(seed_of(self._seed, DRAWS_OF_PARTS, batch)).choice(self._parts)
        return self._parts[batch // self._form.groups % len(self._parts)]


def meets(form: Form, batch: Batch) -> bool:
    """Whether the copies are averaged after this batch."""
    return batch.cut or (form.every > 0 and (batch.number + 1) % (form.groups * form.every) == 0)


class WildField(Field):
    """Groups of workers; those of a group share weights and take batches from one inbox."""

    def __init__(
        self, run: Run, stages: Sequence[Stage], layers: list[Layer], turns: Turns, make: Make, method: Wild
    ) -> None:
        super().__init__(run, stages, layers, turns, make)
        self._form = form = method.form
        self._parts = Parts(form, len(layers), run.stages[0].config.seed)
        at = run.batches_before, run.epochs_before
        self._copies = [stages, *(make([deepcopy(s.module) for s in stages]) for _ in range(form.groups - 1))]
        self._inboxes = [Inbox() for _ in range(form.groups)]
        everyone = names(form)
        rows = [0] * (len(everyone) * len(layers))
        self._workers: dict[str, tuple[Worker, Callable[[], None]]] = {}
        for index, name in enumerate(everyone):
            group = index // form.workers
            copy = self._copies[group]
            own = make(aliased([stage.module for stage in copy]))
            # The first worker's state, such as momentum, is the trainer's; the others' copies go their own way.
            stepper = Stepper(own, stages, layers, shared=index == 0)
            mates = range(group * form.workers, (group + 1) * form.workers)
            worker = Worker(name, index, layers, turns, Versions(rows, len(layers), mates), stepper)
            self._workers[name] = worker, partial(self._work, worker, Pass(copy, layers, at), self._inboxes[group])

    @property
    def workers(self) -> dict[str, tuple[Worker, Callable[[], None]]]:
        """Group by group."""
        return self._workers

    def _inbox(self, number: int) -> Inbox:
        return self._inboxes[number % self._form.groups]

    def meets(self, batch: Batch) -> bool:
        """After every few batches, and at the end of an epoch."""
        return meets(self._form, batch)

    def _meet(self) -> None:
        average(self._copies)

    def _work(self, worker: Worker, passage: Pass, inbox: Inbox) -> None:
        def ready(number: int | None) -> bool:
            return inbox.has(number) or (self._over and not inbox.items)

        def take(number: int | None) -> Any:
            return inbox.take(number) if inbox.items else END

        while isinstance(batch := self.turns.exchange(worker.name, Exchange("take", ready, take)), Batch):
            worker.forward(passage, batch)
            part = self._parts.of(self.run.batches_before + batch.number)
            worker.backward(passage, at_once=False, part=part)
            self.done(worker, batch)
