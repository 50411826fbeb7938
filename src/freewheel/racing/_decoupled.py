"""`async-lu`, `async-bu`: forward workers hand losses over to backward workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from freewheel.methods import Decoupled
from freewheel.racing._counts import Versions
from freewheel.racing._field import END, Field, Inbox, Make
from freewheel.racing._layers import Layer, aliased
from freewheel.racing._pass import Pass
from freewheel.racing._stepper import Guards, Stepper
from freewheel.racing._turns import Exchange, Turns
from freewheel.racing._worker import Worker
from freewheel.runtime import Batch, Run
from freewheel.stage import Stage


def names(method: Decoupled) -> list[str]:
    """The workers, those of the forward first."""
    forward = [f"forward worker {i}" for i in range(method.forward_workers)]
    return forward + [f"backward worker {i}" for i in range(method.backward_workers)]


class DecoupledField(Field):
    """One set of weights, forward workers, backward workers, and a queue between them.

    ::

        inbox → forward worker → queue → backward worker → done
                └────── at most `under_way` batches ──────┘
    """

    def __init__(
        self, run: Run, stages: Sequence[Stage], layers: list[Layer], turns: Turns, make: Make, method: Decoupled
    ) -> None:
        super().__init__(run, stages, layers, turns, make)
        self._method = method
        self._batches, self._losses = Inbox(), Inbox()
        self._taken = 0
        at = run.batches_before, run.epochs_before
        self._passes = deque(Pass(stages, layers, at) for _ in range(method.under_way))
        everyone = names(method)
        versions = Versions([0] * (len(everyone) * len(layers)), len(layers), range(len(everyone)))
        guards = Guards(len(layers), locked=method.locked)
        self._workers: dict[str, tuple[Worker, Callable[[], None]]] = {}
        for index, name in enumerate(everyone):
            backward = index >= method.forward_workers
            modules = aliased([stage.module for stage in stages]) if backward else []
            stepper = Stepper(make(modules), stages, layers, shared=True) if backward else None
            worker = Worker(name, index, layers, turns, versions, stepper, guards)
            self._workers[name] = worker, partial(self._backward if backward else self._forward, worker)

    @property
    def workers(self) -> dict[str, tuple[Worker, Callable[[], None]]]:
        """Forward workers first."""
        return self._workers

    def _inbox(self, number: int) -> Inbox:
        return self._batches

    def _forward(self, worker: Worker) -> None:
        def ready(number: int | None) -> bool:
            if self._over and not self._batches.items:
                return True
            return self._batches.has(number) and self._taken - self._done < self._method.under_way

        def take(number: int | None) -> Any:
            if self._over and not self._batches.items:
                return END
            self._taken += 1
            return self._batches.take(number)

        while isinstance(batch := self.turns.exchange(worker.name, Exchange("take", ready, take)), Batch):
            passage = self._passes.popleft()
            worker.forward(passage, batch)
            self._hand_over(worker, passage)

    def _hand_over(self, worker: Worker, passage: Pass) -> None:
        def hand(number: int | None) -> Pass:
            self._losses.items.append(passage)
            return passage

        self.turns.exchange(worker.name, Exchange("hand", lambda number: True, hand))

    def _backward(self, worker: Worker) -> None:
        def over() -> bool:
            return self._over and self._done == self._dealt

        def ready(number: int | None) -> bool:
            return over() or self._losses.has(number)

        def take(number: int | None) -> Any:
            return END if over() else self._losses.take(number)

        while isinstance(passage := self.turns.exchange(worker.name, Exchange("take", ready, take)), Pass):
            worker.backward(passage, at_once=self._method.at_once, part=range(len(self.layers)))
            self.done(worker, passage, self._passes.append)
