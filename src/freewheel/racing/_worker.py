"""A worker: it takes batches forward, backward or both, asks for each step, and counts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from freewheel.plan import Action, Op
from freewheel.racing._counts import Tally, Versions
from freewheel.racing._layers import Layer
from freewheel.racing._pass import Pass
from freewheel.racing._stepper import Guards, Stepper
from freewheel.racing._turns import ReplayError, Turns
from freewheel.runtime import NOT_FINITE, Batch, ClosedError, StageError


class Worker:
    """One of those who race.

    Args:
        name: What it is called.
        index: Its row of `versions`.
        layers: The layers of the network.
        turns: Who may make a step when.
        versions: The updates of the weights that it works on.
        stepper: Its optimizers; None for one that never updates.
        guards: Locks of the layers.
    """

    def __init__(
        self,
        name: str,
        index: int,
        layers: list[Layer],
        turns: Turns,
        versions: Versions,
        stepper: Stepper | None,
        guards: Guards | None = None,
    ) -> None:
        self.name, self.turns, self.stepper = name, turns, stepper
        self._index, self._layers, self._versions, self._guards = index, layers, versions, guards
        self.tally = Tally(len(layers))
        self.doing: tuple[Op, int, Layer | None] | None = None
        self.where = ""  # it failed, as an error says it
        self._found: list[Layer] = []

    def forward(self, passage: Pass, batch: Batch) -> None:
        """Computes the loss of a batch."""
        met: set[int] = set()

        def reached(layer: Layer) -> None:
            self.doing = Op.FORWARD, batch.number, layer
            self.turns.step(self.name, f"F{batch.number} {layer.name}")
            if layer.index not in met:
                met.add(layer.index)
                passage.seen[layer.index] = self._versions.of(layer.index)

        with self._at_work(Op.FORWARD, batch.number):
            passage.seen = [self._versions.of(layer.index) for layer in self._layers]
            passage.on_forward = reached
            loss = passage.forward(batch)
            if loss.device.type == "cpu" and not math.isfinite(loss.item()):
                raise FloatingPointError(f"the loss is {loss.item()}: {NOT_FINITE}")
        self._keep(batch, loss)

    def _keep(self, batch: Batch, loss: Tensor) -> None:
        self.tally.losses.append((batch.number, loss, batch.size))

    def backward(self, passage: Pass, *, at_once: bool, part: range) -> None:
        """Goes backward and updates the layers of this part: each at once, or all at the end."""
        number, self._found = passage.number, []

        def complete(layer: Layer) -> None:
            if at_once:
                self._update(passage, layer)
            else:
                self._found.append(layer)
            self.doing = Op.BACKWARD, number, None
            self.turns.step(self.name, f"B{number} {layer.name}")

        with self._at_work(Op.BACKWARD, number):
            self.turns.step(self.name, f"B{number}")
            passage.on_gradient = complete
            passage.backward(part)
            # Of a layer of which the batch has used a part alone, the gradient is never complete.
            rest = [self._layers[i] for i in part if passage.has_gradient(self._layers[i])]
            for layer in (*self._found, *(layer for layer in rest if layer not in self._found)):
                self._update(passage, layer)
            passage.settle()

    def _update(self, passage: Pass, layer: Layer) -> None:
        assert self.stepper is not None
        number, i = passage.number, layer.index
        self.doing = Op.UPDATE, number, layer
        self.turns.step(self.name, f"U{number} {layer.name}")
        self.tally.started[i] += 1
        with passage.streamed():
            if self._guards is None:
                self._step(passage, layer)
            else:
                with self._guards.at(i):
                    self._step(passage, layer)
        self._versions.add(self._index, i)
        self.tally.finished[i] += 1

    def _step(self, passage: Pass, layer: Layer) -> None:
        assert self.stepper is not None
        self.tally.gaps[layer.index] += self._versions.of(layer.index) - passage.seen[layer.index]
        self.stepper.update(layer, passage.take(layer), passage.number)

    @contextmanager
    def _at_work(self, op: Op, batch: int) -> Iterator[None]:
        """Inside, it computes; an error says who failed where."""
        started = time.perf_counter()
        self.doing = op, batch, None
        try:
            yield
        except (ClosedError, ReplayError):
            raise
        except Exception as error:
            op, batch, layer = self.doing
            self.where = f", {self.name}" if layer is None else f", {self.name}, layer {layer.name!r},"
            raise StageError(0 if layer is None else layer.stage, Action(op, batch, 0), error, self.where) from error
        self.doing = None
        self.tally.busy += time.perf_counter() - started
