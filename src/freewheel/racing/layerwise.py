"""`async-lu`, `async-bu`: separate forward and backward workers on one set of weights.

Paper: Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise updates; algorithm 1.

A forward worker computes losses with the current weights and hands each loss over. A backward worker takes a loss back
through the layers m = M…1 and updates θ_m, without a lock:

    θ_m ← θ_m - lr · ∂loss/∂θ_m,    with the current weights and the activations of the forward

`async-lu` updates layer m as soon as its gradient is complete, `async-bu` all layers at the end of the backward.

    forward 0    F0: 1 2 3   F1: 1 2 3   F2: 1 2 3  …
    backward 0               B0: 3! 2! 1!           B2: 3! …      ! in async-lu: an immediate update of the layer,
    backward 1                           B1: 3! 2! 1!  …            so F1 sees the new layer 3 and perhaps layer 2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from freewheel._errors import of_type, whole_number
from freewheel.racing._interleaving import Interleaving
from freewheel.racing._local import BatchQueue, LocalPool
from freewheel.racing._memory import LayerLocks, Stepper, aliased, stages_on
from freewheel.racing._method import Racing
from freewheel.racing._pool import BuildPool, WorkerGroups
from freewheel.racing._worker import BatchPass, UpdateCounts, Worker
from freewheel.runtime import Run


@dataclass(frozen=True, kw_only=True)
class Decoupled(Racing):
    """Base of `AsyncLU` and `AsyncBU`; see `AsyncLU` for the arguments."""

    layerwise: ClassVar[bool]  # whether a layer is updated as soon as its gradient is complete

    backward_workers: int = 2
    forward_workers: int = 1
    queue: int = 1
    locked: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("backward_workers", self.backward_workers, least=1)
        whole_number("forward_workers", self.forward_workers, least=1)
        whole_number("queue", self.queue, least=0)
        of_type("locked", self.locked, bool, "give True or False")

    @property
    def worker_names(self) -> list[str]:
        """Forward workers first."""
        forward = [f"forward worker {i}" for i in range(self.forward_workers)]
        return forward + [f"backward worker {i}" for i in range(self.backward_workers)]

    def pool(self, runtime: str) -> BuildPool:
        """Forward and backward workers as threads."""
        return partial(DecoupledPool, self)


@dataclass(frozen=True, kw_only=True)
class AsyncLU(Decoupled):
    """Forward and backward workers on shared weights; a layer is updated as soon as its gradient is complete.

    Args:
        backward_workers: Workers that run backwards.
        forward_workers: Workers that compute losses.
        queue: Batches that may be in flight beyond one per backward worker: a forward begins when fewer than
            `backward_workers + queue` are. With one backward worker and 0, nothing overlaps: plain SGD.
        locked: Whether updates of a layer exclude each other; without a lock, simultaneous updates may lose additions.
        record: A file to which `fit` writes the order of steps.
        replay: A recording that `simulate` follows instead of the seed.

    Example:
        >>> AsyncLU(backward_workers=2).worker_names
        ['forward worker 0', 'backward worker 0', 'backward worker 1']
    """

    name: ClassVar[str] = "async-lu"
    layerwise: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class AsyncBU(Decoupled):
    """Forward and backward workers on shared weights; all layers are updated at the end of the backward.

    The arguments are those of `AsyncLU`.
    """

    name: ClassVar[str] = "async-bu"
    layerwise: ClassVar[bool] = False


class DecoupledPool(LocalPool):
    """Forward workers, backward workers, and a queue of losses between them.

    ::

        batches → forward worker → losses → backward worker → done
                  └─── at most backward_workers + queue ───┘
    """

    def __init__(self, method: Decoupled, run: Run, interleaving: Interleaving) -> None:
        super().__init__(WorkerGroups(), run, interleaving)
        self._layerwise, self._limit = method.layerwise, method.backward_workers + method.queue
        self._batches, self._losses = BatchQueue(), BatchQueue()
        layers = self.layers
        self._passes = deque(BatchPass(run.stages, layers, run.spec.before) for _ in range(self._limit))
        names = method.worker_names
        updates = UpdateCounts([0] * (len(names) * len(layers)), len(layers), range(len(names)))
        locks = LayerLocks(len(layers), locked=method.locked)
        for index, name in enumerate(names):
            backward = index >= method.forward_workers
            own = stages_on(run.blueprints, aliased(self.modules)) if backward else ()
            stepper = Stepper(own, run.stages, layers, shared=True) if backward else None
            worker = Worker(name, index, layers, interleaving, updates, stepper, locks)
            self.workers.append((worker, partial(self._backward if backward else self._forward, worker)))

    def copies(self) -> Sequence[Iterable[Tensor]]:
        """One only: there is nothing to average."""
        return ()

    def _queue(self, number: int) -> BatchQueue:
        return self._batches

    def _forward(self, worker: Worker) -> None:
        pending = self._batches.items

        def over() -> bool:
            return self._over and not pending

        def room() -> bool:
            in_flight = self._dealt - len(pending) - self._done
            return in_flight < self._limit

        while (batch := self.take(worker, self._batches, over, room)) is not None:
            batch_pass = self._passes.popleft()
            worker.forward(batch_pass, batch)
            self.put(worker, "hand", batch_pass, self._losses.items.append)

    def _backward(self, worker: Worker) -> None:
        def over() -> bool:
            return self._over and self._done == self._dealt

        while (batch_pass := self.take(worker, self._losses, over)) is not None:
            worker.backward(batch_pass, layerwise=self._layerwise, partition=range(len(self.layers)))
            self.done(worker, batch_pass, self._passes.append)
