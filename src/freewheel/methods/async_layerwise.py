"""`async-lu`, `async-bu`: forward and backward workers of their own, racing on one set of weights.

Paper: Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise updates; algorithm 1.

A forward worker computes losses on whatever the weights are at the moment and hands each over. A backward worker takes
a loss back through the layers m = M…1 and changes θ_m, without a lock:

    θ_m ← θ_m - lr · ∂loss/∂θ_m,    the derivative with the weights of now and the activations of the forward

`async-lu` does so the moment the gradient of layer m is there, `async-bu` for all layers once the backward is through.

    forward 0    F0: 1 2 3   F1: 1 2 3   F2: 1 2 3  …
    backward 0               B0: 3! 2! 1!           B2: 3! …      ! in async-lu: the layer is updated at once,
    backward 1                           B1: 3! 2! 1!  …            so that F1 sees the new layers 3 and perhaps 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel._errors import whole_number
from freewheel.methods._racing import Racing


@dataclass(frozen=True, kw_only=True)
class Decoupled(Racing):
    """What both have in common.

    Args:
        backward_workers: Workers that go backward.
        forward_workers: Workers that compute losses.
        queue: Batches that may be under way beyond those that backward workers have their hands on: a forward begins
            when fewer than `backward_workers + queue` are. With one backward worker and 0 nothing overlaps: plain SGD.
        locked: Whether a lock on each layer keeps two updates of it apart; without it, parts of one may get lost.
    """

    at_once: ClassVar[bool]  # whether a layer is updated the moment its gradient is there
    runtimes: ClassVar[tuple[str, ...]] = ("simulate", "threads")

    backward_workers: int = 2
    forward_workers: int = 1
    queue: int = 1
    locked: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("backward_workers", self.backward_workers, least=1)
        whole_number("forward_workers", self.forward_workers, least=1)
        whole_number("queue", self.queue, least=0)
        if not isinstance(self.locked, bool):
            raise TypeError(f"locked={self.locked!r}: give True or False")

    @property
    def total_workers(self) -> int:
        """Forward and backward ones."""
        return self.forward_workers + self.backward_workers

    @property
    def under_way(self) -> int:
        """The most batches between the begin of a forward and the end of its backward."""
        return self.backward_workers + self.queue


@dataclass(frozen=True, kw_only=True)
class AsyncLU(Decoupled):
    """Forward and backward workers on shared weights; a layer is updated the moment its gradient is there.

    Args:
        backward_workers: Workers that go backward.
        forward_workers: Workers that compute losses.
        queue: How many more batches than there are backward workers may be under way.
        locked: Whether a lock on each layer keeps two updates of it apart.
        record: A file to which `fit` writes the order of steps that came about.
        replay: Such a file, for `runtime="simulate"` to follow.

    Example:
        >>> import freewheel as fw
        >>> fw.method("async-lu", backward_workers=3).total_workers
        4
    """

    name: ClassVar[str] = "async-lu"
    at_once: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class AsyncBU(Decoupled):
    """Forward and backward workers on shared weights; all layers are updated once the backward is through.

    The arguments are those of `AsyncLU`.
    """

    name: ClassVar[str] = "async-bu"
    at_once: ClassVar[bool] = False
