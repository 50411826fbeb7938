"""The tangents of one stage: drawn in the pass, and redrawn in the update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from freewheel._errors import of_type
from freewheel.stage import Launcher, described
from freewheel.tangents._activations import Perturbation, gradients
from freewheel.tangents._counted import CountedTangents
from freewheel.tangents._draw import Drawer
from freewheel.tangents._options import TangentOptions
from freewheel.tangents._scale import alphas
from freewheel.tangents.distributions import find_distribution

# By micro-batch, numbered across replicas: a number per tangent, or per tangent and sample. If micro-batches share
# tangents and only weights are perturbed, their sum is stored under the replica's number instead.
Derivatives = dict[int, Tensor]
Tangents = dict["TangentKey", dict[int, Tensor]]  # by parameter
TangentKey = tuple[int, int]  # micro-batch (or the replica, if micro-batches share tangents), number of the tangent


@dataclass
class Passed:
    """What the passes of a batch have left for its update; almost nothing with checkpointed tangents."""

    used: set[int] = field(default_factory=set)  # parameters
    tangents: Tangents = field(default_factory=dict)
    perturbations: dict[TangentKey, list[Perturbation]] = field(default_factory=dict)  # always by micro-batch
    used_by: dict[int, set[int]] = field(default_factory=dict)  # with replicas: the parameters used by each
    seeds: dict[int, list[Tensor]] = field(default_factory=dict)  # on the device, by replica or micro-batch

    def copy(self) -> Passed:
        """Return a copy, to which another pass may add."""
        tangents = {key: dict(each) for key, each in self.tangents.items()}
        return Passed(set(self.used), tangents, dict(self.perturbations), dict(self.used_by), dict(self.seeds))

    def encode(self) -> tuple[Any, ...]:
        """Convert to plain containers."""
        perturbations = {key: [tuple(each) for each in found] for key, found in self.perturbations.items()}
        return sorted(self.used), self.tangents, perturbations

    @classmethod
    def decode(cls, encoded: tuple[Any, ...]) -> Passed:
        """Invert `encode`."""
        used, tangents, perturbations = encoded

        def decoded(fields: tuple[Any, ...]) -> Perturbation:
            each = Perturbation(*fields)
            return each._replace(shape=torch.Size(each.shape), version=each.x._version)

        found = {key: [decoded(fields) for fields in each] for key, each in perturbations.items()}
        return cls(set(used), tangents, found)


@dataclass
class PendingBatch:
    """A batch whose derivative is not known yet."""

    batch: int
    alphas: tuple[float, ...]  # of each parameter; the same object for all batches with the same scale
    passed: Passed = field(default_factory=Passed)

    @property
    def frozen(self) -> bool:
        """Whether no parameter is perturbed."""
        return not any(self.alphas)


class Directions:
    """Draws the tangents of a stage's parameters and computes gradients from them.

    Args:
        tangents: The user's options.
        key: The seed and the stage's number, shared by all draws of this stage.
        named: The stage's parameters, each with the names that patterns may match, its own first.
        groups: The scale of each parameter's group in the optimizer, by the parameter's id.
        padding: The untrained row of an embedding, its padding, by the parameter's id.
        device: The stage's device.
        per_micro_batch: Whether each micro-batch has its own tangents.
        launcher: Returns the stage's launcher.
    """

    def __init__(
        self,
        tangents: TangentOptions,
        key: tuple[int, int],
        named: Sequence[tuple[tuple[str, ...], nn.Parameter]],
        groups: Mapping[int, float],
        padding: Mapping[int, int],
        device: torch.device,
        *,
        per_micro_batch: bool = False,
        launcher: Callable[[], Launcher] = Launcher,
    ) -> None:
        self.tangents, self._key, self._per_micro_batch = tangents, key, per_micro_batch
        self.names = [names for names, _ in named]
        self.parameters = [p for _, p in named]
        self._groups = [groups.get(id(p), 0.0) if p.requires_grad else 0.0 for p in self.parameters]
        self._index = {id(p): i for i, p in enumerate(self.parameters) if p.requires_grad}
        self._padding = {i: padding[id(p)] for i, p in enumerate(self.parameters) if id(p) in padding}
        distribution = find_distribution(tangents.distribution)
        self._drawer = Drawer(distribution, device, lambda generator, key: launcher().seeded(generator, key))
        self.counted = CountedTangents(tangents, key, self.parameters, self._padding, device, launcher)
        self._scale: tuple[int, tuple[float, ...]] | None = None  # epoch, and α of each parameter in it
        self._scales: dict[tuple[float, ...], tuple[float, ...]] = {}  # all that there were
        self.repeated: set[int] = set()  # parameters used more than once in a pass: drawn once, then cached

    def start(self, batch: int, epoch: int) -> tuple[PendingBatch, Tangents | None]:
        """Start a batch with its scale; return it, and its tangents if the user provides them."""
        if self._scale is None or self._scale[0] != epoch:
            found = alphas(self.tangents.scale, epoch, self.names, self._groups)
            self._scale = epoch, self._known(a if p.requires_grad else 0.0 for a, p in zip(found, self.parameters))
        pending = PendingBatch(batch, self._scale[1])
        if self.tangents.direction is None:
            return pending, None
        given = self._user_tangents(pending)
        pending.alphas = self._known(a if i in given else 0.0 for i, a in enumerate(pending.alphas))
        return pending, {(0, 0): given}

    def _known(self, scale: Iterable[float]) -> tuple[float, ...]:
        """Return the same object for equal scales."""
        own = tuple(scale)
        return self._scales.setdefault(own, own)

    def _user_tangents(self, pending: PendingBatch) -> dict[int, Tensor]:
        """Return the user's tangents, checked, by parameter."""
        assert self.tangents.direction is not None
        named = {self.names[i][0]: i for i, alpha in enumerate(pending.alphas) if alpha}
        weights = {name: self.parameters[i].detach() for name, i in named.items()}
        given = self.tangents.direction(pending.batch, self._key[1], weights)
        hint = "it must return a dict of tangents by parameter name"
        out = {}
        for name, tangent in of_type("direction(batch, stage, params)", given, Mapping, hint).items():
            if name not in named:
                raise ValueError(f"direction returned {name!r}, which is not a trainable parameter of this stage")
            weight = weights[name]
            if not isinstance(tangent, Tensor) or tangent.shape != weight.shape:
                want = f"it must return a tensor of shape {tuple(weight.shape)}"
                raise ValueError(f"direction returned {described(tangent)} for {name!r}: {want}")
            out[named[name]] = self._scaled(tangent.detach().to(weight, copy=True), pending, named[name])
        return out

    def index_of(self, tensor: Tensor) -> int | None:
        """Return the index of a trainable parameter; None for any other tensor."""
        return self._index.get(id(tensor))

    def draw(self, pending: PendingBatch, key: TangentKey, index: int) -> Tensor:
        """Draw the tangent of a parameter: a new tensor with the same values every time."""
        u = self._drawer.draw((*self._key, pending.batch, index, *key), self.parameters[index])
        return self._scaled(u, pending, index)

    def _scaled(self, u: Tensor, pending: PendingBatch, index: int) -> Tensor:
        if index in self._padding:
            u[self._padding[index]] = 0
        alpha = pending.alphas[index]
        return u.mul_(alpha) if alpha != 1 else u

    def draw_all(self, pending: PendingBatch, keys: Sequence[TangentKey]) -> Tangents:
        """Draw the tangents of all parameters ahead of the passes."""
        trained = [i for i, alpha in enumerate(pending.alphas) if alpha]
        return {key: {i: self.draw(pending, key, i) for i in trained} for key in keys}

    def draw_perturbation(self, pending: PendingBatch, key: TangentKey, perturbation: Perturbation) -> Tensor:
        """Draw the perturbation of a layer's output, before scaling."""
        like = perturbation.x.new_empty(()).expand(perturbation.shape)
        return self._drawer.draw((*self._key, pending.batch, perturbation.weight, *key, perturbation.use), like)

    def activation_alpha(self, pending: PendingBatch, weight: int, bias: int | None) -> float:
        """Return the scale of a layer's output: the larger one of its parameters."""
        return max(pending.alphas[weight], 0.0 if bias is None else pending.alphas[bias])

    def gradient(self, pending: PendingBatch, derivatives: Derivatives, index: int) -> Tensor | None:
        """Return the mean of d·u over the tangents of a parameter; None if it was not used."""
        count, out = self.tangents.tangents, None
        separate = self._per_micro_batch or pending.passed.used_by
        groups = {j: {j: d} for j, d in derivatives.items()} if separate else {0: derivatives}
        for which, group in groups.items():
            if index not in pending.passed.used_by.get(which, pending.passed.used):
                continue
            found = _summed(group)
            for p in range(count):
                stored = pending.passed.tangents.get((which, p), {}).get(index)
                u = self.draw(pending, (which, p), index) if stored is None else stored
                d = (found[p] / count).to(u.dtype)
                term = u.mul_(d) if stored is None else u * d
                out = term if out is None else out.add_(term)
        return out

    def activation_gradients(self, pending: PendingBatch, derivatives: Derivatives) -> dict[int, Tensor]:
        """Return the gradients of layers with perturbed outputs, by parameter.

        In a sequence split along time, a perturbation that persists in a recurrent state uses the derivatives of its
        own and all later micro-batches, any other only its own.
        """
        persistent = any(each.persists for found in pending.passed.perturbations.values() for each in found)
        later = _suffix_sums(derivatives) if persistent else {}
        out: dict[int, Tensor] = {}
        for key, perturbations in pending.passed.perturbations.items():
            micro, p = key
            for each in perturbations:
                alpha = self.activation_alpha(pending, each.weight, each.bias)
                v = self.draw_perturbation(pending, key, each)
                d = (later if each.persists else derivatives)[micro][p]
                found = gradients(each, v, d / self.tangents.tangents, self.parameters[each.weight])
                for index, g in zip((each.weight, each.bias), found):
                    if index is not None and pending.alphas[index]:
                        g = g.mul_(pending.alphas[index] ** 2 / alpha).to(self.parameters[index].dtype)
                        out[index] = out[index].add_(g) if index in out else g
        return out


def _summed(derivatives: Derivatives) -> Tensor:
    """Sum over micro-batches and samples: one number per tangent."""
    each = [d if d.dim() == 1 else d.sum(1) for d in derivatives.values()]
    return each[0] if len(each) == 1 else torch.stack(each).sum(0)


def _suffix_sums(derivatives: Derivatives) -> Derivatives:
    """Sum the derivatives of each micro-batch and all later ones.

    Example:
        >>> _suffix_sums({0: torch.tensor(1.0), 1: torch.tensor(2.0), 2: torch.tensor(4.0)})
        {2: tensor(4.), 1: tensor(6.), 0: tensor(7.)}
    """
    order = sorted(derivatives, reverse=True)
    return dict(zip(order, accumulate((derivatives[micro] for micro in order), torch.add)))


class TangentSource:
    """The tangents of one pass."""

    def __init__(self, directions: Directions, pending: PendingBatch, key: TangentKey) -> None:
        self._directions, self._pending, self._tangent_key = directions, pending, key
        tangents = directions.tangents
        self._stores = not tangents.checkpoint or key in pending.passed.tangents
        self._cache: dict[int, Tensor] = pending.passed.tangents.setdefault(key, {}) if self._stores else {}
        self._seen: set[int] = set()
        self.index_of = directions.index_of

    def tangent(self, index: int) -> Tensor | None:
        """Return the tangent of a parameter, None if it is not perturbed."""
        if not self._pending.alphas[index]:
            return None
        self._pending.passed.used.add(index)
        if index in self._cache:
            return self._cache[index]
        u = self._directions.draw(self._pending, self._tangent_key, index)
        if index in self._seen:
            self._directions.repeated.add(index)
        self._seen.add(index)
        if self._stores or index in self._directions.repeated:
            self._cache[index] = u
        return u
