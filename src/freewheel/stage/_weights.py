"""Weight versions: which tensors a forward runs on and a late backward sees.

Nothing here edits a tensor behind autograd's back. A late stage forwards on *copies* of its weights, so that the
optimizer may change the weights themselves in place while older graphs are alive; or it packs its weights as
handles, which autograd's own hooks resolve when the backward runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Tensors = Sequence[Tensor]
OTHER_GRAPH = (
    "a forward that is done again saves other tensors than the first time: under weights='current', a module whose "
    "graph depends on its values cannot go on from a checkpoint with batches in flight"
)


class WeightVersions(ABC):
    """The trainable weights of a stage and their versions."""

    def __init__(self, module: nn.Module) -> None:
        self.live: list[nn.Parameter] = [p for p in module.parameters() if p.requires_grad]
        self.saved: list[Any] | None = None  # gets what autograd saves, where the weights cannot tell later on

    @abstractmethod
    def forward(self, version: int) -> AbstractContextManager[Tensors]:
        """Inside, the module runs on the weights of this version's forwards; gradients are taken by what it gives."""

    def backward(self) -> AbstractContextManager[object]:
        """Inside, a backward of an earlier forward runs."""
        return nullcontext()

    def release(self, version: int) -> None:  # noqa: B027
        """One graph made at this version is gone."""

    def updated(self) -> None:  # noqa: B027
        """The live weights have a new version."""

    def pending(self) -> dict[str, Any]:
        """The versions that graphs still need, in plain containers, by reference."""
        return {}

    def restore(self, pending: dict[str, Any]) -> None:  # noqa: B027
        """Holds such versions again; the graphs that need them are made after this."""

    def replaying(self, saved: Sequence[Any]) -> AbstractContextManager[object]:
        """Inside, a forward is done again, and its graph gets what autograd saved the first time."""
        return nullcontext()

    @property
    def copies(self) -> int:
        """How many sets of weights are held, the live one included."""
        return 1


class Live(WeightVersions):
    """The weights themselves: for a stage that learns before it changes."""

    def forward(self, version: int) -> AbstractContextManager[Tensors]:
        """Runs on the live weights."""
        return nullcontext(self.live)


class Stash(WeightVersions):
    """A copy for each version that a graph still needs; freed, and used again, as soon as none does.

    With `predict`, the copy is extrapolated by that many steps along the last one:
    w + s·(w - w_before), which for SGD with momentum is SpecTrain's prediction w - s·lr·v (Chen et al., 2018).
    """

    def __init__(self, module: nn.Module, predict: int = 0) -> None:
        super().__init__(module)
        self._slots = _slots(module, self.live)
        self._held: dict[int, tuple[list[Tensor], int]] = {}  # version -> copy, number of graphs that need it
        self._spare: list[list[Tensor]] = []
        self._predict = predict
        self._before: list[Tensor] = [p.detach().clone() for p in self.live] if predict else []
        self._now: list[Tensor] = [p.detach().clone() for p in self.live] if predict else []

    @contextmanager
    def forward(self, version: int) -> Iterator[Tensors]:
        """Runs the module on this version's copy, making it if it is the first to need it."""
        copy, users = self._held.get(version) or (self._copy(), 0)
        self._held[version] = (copy, users + 1)
        for slots, tensor in zip(self._slots, copy):
            for parameters, name in slots:
                parameters[name] = tensor
        try:
            yield copy
        finally:
            for slots, tensor in zip(self._slots, self.live):
                for parameters, name in slots:
                    parameters[name] = tensor

    def release(self, version: int) -> None:
        """Gives the copy back once no graph needs it."""
        copy, users = self._held.pop(version)
        if users > 1:
            self._held[version] = (copy, users - 1)
        else:
            self._spare.append(copy)

    def updated(self) -> None:
        """Keeps the step for the prediction, and lets go of spare copies that are not in steady use."""
        if self._predict:
            self._before, self._now = self._now, self._before
            _copy_all(self._now, self.live)
        del self._spare[1:]

    @property
    def copies(self) -> int:
        """The live weights and every stashed version."""
        return 1 + len(self._held)

    def pending(self) -> dict[str, Any]:
        """The copies, and the last step where it is extrapolated."""
        held = {version: copy for version, (copy, _) in self._held.items()}
        return {"held": held, "before": self._before, "now": self._now}

    def restore(self, pending: dict[str, Any]) -> None:
        """Holds the copies, for as many graphs as will be made with them."""
        held = {v: [t.requires_grad_() for t in copy] for v, copy in pending["held"].items()}
        self._held = {version: (copy, 0) for version, copy in held.items()}
        self._before, self._now = list(pending["before"]), list(pending["now"])

    def _copy(self) -> list[Tensor]:
        if self._spare:
            copy = self._spare.pop()
            _copy_all(copy, self.live)
        else:
            copy = [p.detach().clone().requires_grad_() for p in self.live]
        if self._predict:
            with torch.no_grad():
                for tensor, now, before in zip(copy, self._now, self._before):
                    tensor.add_(now - before, alpha=self._predict)
        return copy


class Current(WeightVersions):
    """The newest weights with the forward's stored activations (PipeMare).

    The forward packs every saved tensor that shares memory with a weight as a handle. The backward unpacks it as the
    same view of the weights of its own time, or of what `corrected` makes of them. Gradients are then not those of
    any one set of weights; that is the method. A saved tensor computed *from* a weight (by weight norm, say) is not a
    view of it and keeps its forward-time value.
    """

    def __init__(self, module: nn.Module, corrected: Callable[[Tensors], Tensors] = lambda weights: weights) -> None:
        super().__init__(module)
        self._corrected = corrected
        self._spans: dict[int, list[tuple[range, int]]] = {}  # storage -> where in it each weight lies
        for i, p in enumerate(self.live):
            start = int(p.storage_offset())
            span = range(start, start + p.numel())
            self._spans.setdefault(p.untyped_storage().data_ptr(), []).append((span, i))
        self._seen: Tensors = self.live
        self._given: Iterator[Any] | None = None

    @contextmanager
    def forward(self, version: int) -> Iterator[Tensors]:
        """Runs on the live weights, which autograd saves as handles."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield self.live

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Resolves the handles to the weights of now."""
        with torch.no_grad():
            self._seen = self._corrected(self.live)
        try:
            yield
        finally:
            self._seen = self.live

    @contextmanager
    def replaying(self, saved: Sequence[Any]) -> Iterator[None]:
        """Runs a forward whose values are not those of the first time, but are not used either."""
        self._given = iter(saved)
        try:
            yield
            if next(self._given, None) is not None:
                raise ValueError(OTHER_GRAPH)
        finally:
            self._given = None

    def _pack(self, tensor: Tensor) -> Tensor | _Handle:
        packed = self._handle(tensor)
        if self._given is not None:
            packed = _as_before(next(self._given, None), packed)
        if self.saved is not None:
            self.saved.append(packed if isinstance(packed, Tensor) else tuple(packed))
        return packed

    def _handle(self, tensor: Tensor) -> Tensor | _Handle:
        for span, index in self._spans.get(tensor.untyped_storage().data_ptr(), ()):
            if tensor.storage_offset() in span:
                return _Handle(index, tensor.size(), tensor.stride(), int(tensor.storage_offset()) - span.start)
        return tensor

    def _unpack(self, packed: Tensor | _Handle) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        weight = self._seen[packed.weight].detach()
        return weight.as_strided(packed.size, packed.stride, weight.storage_offset() + packed.offset)


class _Handle(NamedTuple):
    """A view of a weight, without the weight."""

    weight: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _as_before(given: Any, packed: Tensor | _Handle) -> Tensor | _Handle:
    """What was packed in this place the first time, if it is of the same form."""
    if isinstance(given, Tensor) and isinstance(packed, Tensor):
        if (given.shape, given.dtype) == (packed.shape, packed.dtype):
            return given
    elif isinstance(given, tuple) and isinstance(packed, _Handle) and given == tuple(packed):
        return packed
    raise ValueError(OTHER_GRAPH)


def _copy_all(targets: Tensors, sources: Tensors) -> None:
    """Copies each source into its target, in one call for all."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]


def _slots(module: nn.Module, live: Sequence[nn.Parameter]) -> list[list[tuple[dict, str]]]:
    """For each weight, every place in the module tree that holds it."""
    places: dict[int, list[tuple[dict, str]]] = {id(p): [] for p in live}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if id(parameter) in places:
                places[id(parameter)].append((child._parameters, name))
    return [places[id(p)] for p in live]
