"""`async-lu`, `async-bu`: separate forward and backward workers, on one copy of the weights or one on each device.

Paper: Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise updates; algorithm 1.

A forward worker computes losses with the current weights and hands each loss over. A backward worker takes a loss back
through the layers m = M…1 and updates θ_m, without a lock:

    θ_m ← θ_m - lr · ∂loss/∂θ_m,    with the current weights and the activations of the forward

`async-lu` updates layer m as soon as its gradient is complete, `async-bu` all layers at the end of the backward.

    forward 0    F0: 1 2 3   F1: 1 2 3   F2: 1 2 3  …
    backward 0               B0: 3! 2! 1!           B2: 3! …      ! in async-lu: an immediate update of the layer,
    backward 1                           B1: 3! 2! 1!  …            so F1 sees the new layer 3 and perhaps layer 2

With several devices d = 0 … D-1, each has a copy θ^d of the weights, forward workers and backward workers. A layer that
has been updated is sent to all other devices, where it replaces theirs (the last line of algorithm 1):

    θ_m^d ← θ_m^d - lr · ∂loss/∂θ_m^d
    θ_m^e ← θ_m^d    for all other devices e

    device 0, backward 0     B0: 3! 3→1 2! 2→1 1! 1→1     B2: …
    device 1, backward 0       B1: 3! 3→0 2! 2→0 1! 1→0     B3: …
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from freewheel._devices import devices_from
from freewheel._errors import of_type, whole_number
from freewheel.racing._copy import LayerLocks, UpdateCounts, WeightCopy
from freewheel.racing._interleaving import Interleaving
from freewheel.racing._local import BatchQueue, LocalPool
from freewheel.racing._memory import Stepper, aliased, all_tensors, load_optimizers, stages_on
from freewheel.racing._method import Racing
from freewheel.racing._pool import BuildPool, WorkerGroups
from freewheel.racing._worker import BatchPass, Worker
from freewheel.runtime import Batch, Run
from freewheel.stage import Stage, copied


@dataclass(frozen=True, kw_only=True)
class Decoupled(Racing):
    """Base of `AsyncLU` and `AsyncBU`; see `AsyncLU` for the arguments."""

    layerwise: ClassVar[bool]  # whether a layer is updated as soon as its gradient is complete

    backward_workers: int = 2
    forward_workers: int = 1
    devices: int = 1
    queue: int = 1
    locked: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("backward_workers", self.backward_workers, least=1)
        whole_number("forward_workers", self.forward_workers, least=1)
        whole_number("devices", self.devices, least=1)
        whole_number("queue", self.queue, least=0)
        of_type("locked", self.locked, bool, "give True or False")

    @property
    def copies(self) -> int:
        """One on each device."""
        return self.devices

    @property
    def worker_names(self) -> list[str]:
        """Device by device, forward workers first."""
        kinds = (("forward", self.forward_workers), ("backward", self.backward_workers))
        one = [f"{kind} worker {i}" for kind, count in kinds for i in range(count)]
        return one if self.devices == 1 else [f"{name} of device {d}" for d in range(self.devices) for name in one]

    def pool(self, runtime: str) -> BuildPool:
        """Forward and backward workers as threads."""
        return partial(DecoupledPool, self)


@dataclass(frozen=True, kw_only=True)
class AsyncLU(Decoupled):
    """Forward and backward workers on shared weights; a layer is updated as soon as its gradient is complete.

    Args:
        backward_workers: Workers that run backwards, on each device.
        forward_workers: Workers that compute losses, on each device.
        devices: Copies of the weights. A network on a GPU is copied to the other GPUs in turn, one on the CPU to the
            CPU.
        queue: Batches that may be in flight on a device beyond one per backward worker: a forward begins when fewer
            than `backward_workers + queue` are. With one device, one backward worker and 0, nothing overlaps: plain
            SGD.
        locked: Whether changes of a layer exclude each other; without a lock, simultaneous updates may lose additions.
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


class Device:
    """A device of a race: the trainer's stages, or copies of them there, its free batch passes, and pending losses."""

    def __init__(self, index: int, stages: Sequence[Stage], copy: WeightCopy, passes: Iterable[BatchPass]) -> None:
        self.index, self.stages, self.copy = index, stages, copy
        self.passes, self.losses = deque(passes), BatchQueue()


class Admitted(NamedTuple):
    """A batch, and the batch pass that will take it forward and back."""

    batch: Batch
    batch_pass: BatchPass

    @property
    def number(self) -> int:
        """The batch's number."""
        return self.batch.number


class Intake:
    """The batches that all devices share, as one of them takes them: each with a free batch pass."""

    def __init__(self, batches: BatchQueue, passes: deque[BatchPass]) -> None:
        self._batches, self._passes = batches, passes

    def has(self, number: int | None) -> bool:
        """Whether this batch, or any if None, and a batch pass can be taken."""
        return bool(self._passes) and self._batches.has(number)

    def take(self, number: int | None) -> Admitted:
        """Remove and return both."""
        return Admitted(self._batches.take(number), self._passes.popleft())


class DecoupledPool(LocalPool):
    """Forward workers, backward workers, and a queue of losses between them, on each device.

    ::

        batches → forward worker → losses → backward worker → done
                  └─── at most backward_workers + queue ───┘
    """

    def __init__(self, method: Decoupled, run: Run, interleaving: Interleaving) -> None:
        each = method.forward_workers + method.backward_workers
        super().__init__(WorkerGroups(groups=method.devices, workers=each), run, interleaving)
        self._method, self._batches = method, BatchQueue()
        self._devices = [self._device(i, where) for i, where in enumerate(self._places())]
        for index, name in enumerate(method.worker_names):
            self._add(index, name, self._devices[index // each], backward=index % each >= method.forward_workers)

    def _places(self) -> list[torch.device]:
        """The device of each copy."""
        homes = list(dict.fromkeys(stage.device for stage in self.stages))
        if self._method.devices > 1 and len(homes) > 1:
            raise ValueError(
                f"devices={self._method.devices} with stages on {' and '.join(map(str, homes))}: each device holds a "
                "copy of the whole network; put all stages on one device"
            )
        return devices_from(homes[0], self._method.devices)

    def _device(self, index: int, where: torch.device) -> Device:
        """A device; the first has the trainer's own stages, others copies of their weights and optimizer states."""
        method, run, layers = self._method, self.run, self.layers
        stages: Sequence[Stage] = run.stages
        if index:
            stages = stages_on(run.blueprints, [module.to(where) for module in copied(self.modules)])
            load_optimizers(stages, run.stages)
        names = method.worker_names
        changes = UpdateCounts([0] * (len(names) * len(layers)), len(layers), range(len(names)))
        locks = LayerLocks(len(layers), locked=method.locked)
        copy = WeightCopy(index, [stage.module for stage in stages], layers, changes, locks)
        in_flight = range(method.backward_workers + method.queue)
        passes = [BatchPass(stages, layers, run.spec.before, self.interleaving) for _ in in_flight]
        return Device(index, stages, copy, passes)

    def _add(self, index: int, name: str, device: Device, *, backward: bool) -> None:
        """Add a worker to a device."""
        others = [other.copy for other in self._devices if other is not device]
        own = stages_on(self.run.blueprints, aliased([stage.module for stage in device.stages])) if backward else ()
        stepper = Stepper(own, device.stages, self.layers, shared=True) if backward else None
        worker = Worker(name, index, self.layers, self.interleaving, device.copy, stepper, others)
        self.workers.append((worker, partial(self._backward if backward else self._forward, worker, device)))

    def copies(self) -> Sequence[Iterable[Tensor]]:
        """One per device."""
        return [all_tensors(stage.module for stage in device.stages) for device in self._devices]

    def ideal_speedup(self, ratio: float, batches: int) -> float:
        """λ if workers never wait, except for the first loss and the last backward: equation of section 3.3.

        There one forward worker has enough backward workers: T_2 = (b + β) T. Else backward workers, or the number of
        batches in flight, are the limit.
        """
        method, devices = self._method, self._method.devices
        forwards = batches / (devices * method.forward_workers) + ratio
        backwards = 1 + batches * ratio / (devices * method.backward_workers)
        flights = batches * (1 + ratio) / (devices * (method.backward_workers + method.queue))
        return batches * (1 + ratio) / max(forwards, backwards, flights)

    def _queue(self, number: int) -> BatchQueue:
        return self._batches

    def _forward(self, worker: Worker, device: Device) -> None:
        def over() -> bool:
            return self._over and not self._batches.items

        intake = Intake(self._batches, device.passes)
        while (admitted := self.take(worker, intake, over)) is not None:
            worker.forward(admitted.batch_pass, admitted.batch)
            self.put(worker, "hand", admitted.batch_pass, device.losses.items.append)

    def _backward(self, worker: Worker, device: Device) -> None:
        def over() -> bool:
            return self._over and self._done == self._dealt

        while (batch_pass := self.take(worker, device.losses, over)) is not None:
            worker.backward(batch_pass, layerwise=self._method.layerwise, partition=range(len(self.layers)))
            self.done(worker, batch_pass, device.passes.append)
