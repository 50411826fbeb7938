"""Weight versions: the tensors that a forward runs on and a late backward sees.

No tensor is edited without autograd noticing. A late stage forwards on *copies* of its weights, so that the optimizer
may change the weights in place while older graphs are alive; or it packs its weights as handles, which autograd's
saved-tensor hooks resolve in the backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.plan import Schedule
from freewheel.stage._gradients import with_strides
from freewheel.stage._packed import OTHER_GRAPH, RUNS_AGAIN, Gone, Packed
from freewheel.stage._slots import fill, hooked, slots_of
from freewheel.stage._stand_ins import StandIns, standing_in
from freewheel.stage._trees import versions

Tensors = Sequence[Tensor]


class WeightVersions(ABC):
    """The trainable weights of a stage and their versions."""

    def __init__(self, module: nn.Module) -> None:
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.live: list[nn.Parameter] = [p for _, p in self._named]
        self.saved: list[Any] | None = None  # collects the tensors that autograd saves, for checkpoints

    @abstractmethod
    def forward(self, version: int) -> AbstractContextManager[Tensors]:
        """Run forwards of this version inside the context; its value is the weights to differentiate by."""

    def backward(self, weights: Tensors) -> AbstractContextManager[object]:
        """Run a backward of an earlier forward on these weights inside the context."""
        return nullcontext()

    def check(self, leaves: Sequence[Tensor], weights: Tensors, stage: int) -> None:
        """Reject a graph with live weights among its leaves, other than the weights to differentiate by."""
        known, own = {id(w) for w in weights}, {id(p): name for name, p in self._named}
        for leaf in leaves:
            if id(leaf) in own and id(leaf) not in known:
                raise ValueError(
                    f"stages[{stage}] uses its parameter {own[id(leaf)]!r} through a variable other than an attribute, "
                    "a list or a dict of a module: a late stage runs on copies of its weights; use the attribute"
                )

    def check_replayable(self) -> None:  # noqa: B027
        """Reject forwards that the backward runs again, if the weights of the forward are gone by then."""

    def hold(self, version: int, weights: Tensors) -> None:  # noqa: B027
        """Hold the weights of one graph of this version."""

    def release(self, version: int) -> None:  # noqa: B027
        """Release one graph of this version."""

    def updated(self) -> None:  # noqa: B027
        """Start a new version of the live weights."""

    def pending(self) -> dict[str, Any]:
        """Return the versions that graphs still need, in plain containers, by reference."""
        return {}

    def restore(self, pending: dict[str, Any]) -> None:  # noqa: B027
        """Restore such versions, before their graphs are rebuilt."""

    def replaying(self, saved: Sequence[Any]) -> AbstractContextManager[object]:
        """Replay a forward inside the context; its graph gets the tensors that autograd saved the first time."""
        return nullcontext()

    def stand_ins(self) -> list[StandIns]:
        """Return the copies of weights, each set with the live ones; any thread may call it."""
        return []

    @property
    def copies(self) -> int:
        """The number of sets of weights in memory, including the live one."""
        return 1


class Live(WeightVersions):
    """The live weights themselves, for a stage whose backward precedes the next update."""

    def forward(self, version: int) -> AbstractContextManager[Tensors]:
        """Run on the live weights."""
        return nullcontext(self.live)


class Stash(WeightVersions):
    """A copy for each version that a graph still needs, recycled afterwards.

    With `predict`, the copy is extrapolated by that many steps along the last one: w + s·(w - w_before), which for SGD
    with momentum is SpecTrain's prediction w - s·lr·v (Chen et al., 2018).

    With `fixed`, every forward makes a copy of its own, and everything keeps its place in memory.
    """

    def __init__(self, module: nn.Module, predict: int = 0, *, fixed: bool = False) -> None:
        super().__init__(module)
        self._slots = slots_of(module, self.live)
        self._fixed = fixed
        self._held: dict[int, tuple[list[Tensor], int]] = {}  # version -> copy, number of its graphs
        self._spare: list[list[Tensor]] = []
        self._predict = predict
        self._before: list[Tensor] = [p.detach().clone() for p in self.live] if predict else []
        self._now: list[Tensor] = [p.detach().clone() for p in self.live] if predict else []

    @contextmanager
    def forward(self, version: int) -> Iterator[Tensors]:
        """Run the module on this version's copy, which the first forward makes."""
        held = None if self._fixed else self._held.get(version)
        copy = self._copy() if held is None else held[0]
        before = versions(copy)
        with self._in_place(copy):
            yield copy
        if versions(copy) != before:
            raise ValueError(
                "the module changes its weights in place in forward (max_norm of an embedding, a clamp): a late stage "
                "runs on copies of them; do it between two fits, or use weights='recompute', such as method='fr'"
            )

    def backward(self, weights: Tensors) -> AbstractContextManager[object]:
        """Put the copy in place, too: a backward may run modules again."""
        return self._in_place(weights)

    @contextmanager
    def _in_place(self, copy: Tensors) -> Iterator[None]:
        with standing_in(copy, self.live):
            fill(self._slots, copy)
            try:
                yield
            finally:
                fill(self._slots, self.live)

    @contextmanager
    def replaying(self, saved: Sequence[Any]) -> Iterator[None]:
        """Replay forwards on the restored copies."""
        fixed, self._fixed = self._fixed, False
        try:
            yield
        finally:
            self._fixed = fixed

    def hold(self, version: int, weights: Tensors) -> None:
        """Count the graphs of the copy."""
        copy, users = self._held.get(version) or (list(weights), 0)
        self._held[version] = (copy, users + 1)

    def release(self, version: int) -> None:
        """Recycle the copy once no graph needs it."""
        copy, users = self._held.pop(version)
        if users > 1:
            self._held[version] = (copy, users - 1)
        elif not self._fixed:
            self._spare.append(copy)

    def updated(self) -> None:
        """Store the step for the prediction, and free all spare copies but one."""
        if self._predict and self._fixed:
            _copy_all(self._before, self._now)
        elif self._predict:
            self._before, self._now = self._now, self._before
        if self._predict:
            _copy_all(self._now, self.live)
        del self._spare[1:]

    def stand_ins(self) -> list[StandIns]:
        """Every stashed version, and spare copies."""
        return [(copy, self.live) for copy in (*(copy for copy, _ in list(self._held.values())), *self._spare)]

    @property
    def copies(self) -> int:
        """The live weights and every stashed version."""
        return 1 + len(self._held)

    def pending(self) -> dict[str, Any]:
        """Return the copies, and the last step if it is extrapolated."""
        held = {version: copy for version, (copy, _) in self._held.items()}
        return {"held": held, "before": self._before, "now": self._now}

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore the copies; rebuilt graphs are counted as they use them."""
        self._held = {
            version: ([hooked(with_strides(t, p).requires_grad_(), p) for t, p in zip(copy, self.live)], 0)
            for version, copy in pending["held"].items()
        }
        self._before, self._now = list(pending["before"]), list(pending["now"])

    def _copy(self) -> list[Tensor]:
        if self._spare:
            copy = self._spare.pop()
        else:
            copy = [hooked(torch.empty_like(p).requires_grad_(), p) for p in self.live]
        _copy_all(copy, self.live)
        if self._predict:
            with torch.no_grad():
                for tensor, now, before in zip(copy, self._now, self._before):
                    tensor.add_(now - before, alpha=self._predict)
        return copy


class Current(WeightVersions):
    """The newest weights with the forward's stored activations (PipeMare).

    The forward packs every saved tensor that shares memory with a weight as a handle. The backward unpacks it as the
    same view of the then newest weights, after `corrected`. By design, gradients are not those of any one set of
    weights. A saved tensor computed *from* a weight (by weight norm, say) is not a view and keeps its value.
    """

    def __init__(self, module: nn.Module, corrected: Callable[[Tensors], Tensors] = lambda weights: weights) -> None:
        super().__init__(module)
        self._corrected = corrected
        self._slots = slots_of(module, self.live)
        self._spans: dict[int, list[tuple[range, int]]] = {}  # storage -> the span of each weight in it
        for i, p in enumerate(self.live):
            start = int(p.storage_offset())
            span = range(start, start + p.numel())
            self._spans.setdefault(p.untyped_storage().data_ptr(), []).append((span, i))
        self._seen: Tensors = self.live
        self._replayed: Iterator[Any] | None = None

    @contextmanager
    def forward(self, version: int) -> Iterator[Tensors]:
        """Run on the live weights, which autograd saves as handles."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield self.live

    @contextmanager
    def backward(self, weights: Tensors) -> Iterator[None]:
        """Resolve the handles to the newest weights; a module that is run again would not find those of its forward."""
        with torch.no_grad():
            self._seen = self._corrected(self.live)
        fill(self._slots, [Gone()] * len(self.live))
        try:
            yield
        finally:
            self._seen = self.live
            fill(self._slots, self.live)

    def check_replayable(self) -> None:
        """Reject all."""
        raise ValueError(RUNS_AGAIN)

    @contextmanager
    def replaying(self, saved: Sequence[Any]) -> Iterator[None]:
        """Replay a forward whose saved values are replaced by those of the first time."""
        self._replayed = iter(saved)
        try:
            yield
            if next(self._replayed, None) is not None:
                raise ValueError(OTHER_GRAPH)
        finally:
            self._replayed = None

    def _pack(self, tensor: Tensor) -> Packed:
        packed = self._packed(tensor)
        if self._replayed is not None:
            packed = packed.replayed(next(self._replayed, None))
        if self.saved is not None:
            self.saved.append(packed.tensor if packed.view is None else packed.view)
        return packed

    def _packed(self, tensor: Tensor) -> Packed:
        for span, index in self._spans.get(tensor.untyped_storage().data_ptr(), ()):
            if tensor.storage_offset() in span:
                offset = int(tensor.storage_offset()) - span.start
                return Packed(None, (index, tensor.size(), tensor.stride(), offset))
        return Packed(tensor.detach())  # without the node that saves it, which would never be freed

    def _unpack(self, packed: Packed) -> Tensor:
        if packed.view is None:
            return packed.tensor  # pyright: ignore[reportReturnType]
        index, size, stride, offset = packed.view
        weight = self._seen[index].detach()
        return weight.as_strided(size, stride, weight.storage_offset() + offset)


def late_weights(
    module: nn.Module, schedule: Schedule, delay: int, corrected: Callable[[Tensors], Tensors], *, fixed: bool
) -> WeightVersions:
    """Return the weight versions of a stage with this delay; `corrected` are those that a backward sees."""
    if not delay or schedule.weights == "recompute":
        return Live(module)
    if schedule.weights == "current":
        return Current(module, corrected)
    gap = delay - (schedule.order == "backward")
    return Stash(module, predict=gap if schedule.weights == "predict" else 0, fixed=fixed)


def _copy_all(targets: Tensors, sources: Tensors) -> None:
    """Copy each source into its target, in one call."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]
