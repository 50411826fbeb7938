"""The tangents of one stage: drawn where a pass needs them, drawn again where the update does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.tangents._activations import Move, gradients
from freewheel.tangents._draw import Drawer
from freewheel.tangents._options import TangentOptions
from freewheel.tangents._scale import alphas
from freewheel.tangents.distributions import find_distribution

# By micro-batch, counted through all replicas: a number for each tangent, or for each tangent and each sample. Where
# the micro-batches share their tangents, and these move weights alone, the sum is at the number of the replica.
Derivatives = dict[int, Tensor]
TangentKey = tuple[int, int]  # micro-batch (the replica where they share their tangents), number of the tangent


@dataclass
class PendingBatch:
    """What a batch leaves behind until its derivative is known; with checkpointed tangents, next to nothing."""

    batch: int
    alphas: list[float]  # of each parameter
    used: set[int] = field(default_factory=set)  # the parameters that took part
    kept: dict[TangentKey, dict[int, Tensor]] = field(default_factory=dict)  # tangents by parameter
    moves: dict[TangentKey, list[Move]] = field(default_factory=dict)  # moved activations, by micro-batch in any case
    moved: dict[int, set[int]] = field(default_factory=dict)  # with replicas: the parameters that took part in each

    @property
    def frozen(self) -> bool:
        """Whether no parameter is moved."""
        return not any(self.alphas)

    def encode(self) -> tuple[Any, ...]:
        """The same in plain containers."""
        moves = {key: [tuple(move) for move in each] for key, each in self.moves.items()}
        return self.batch, self.alphas, sorted(self.used), self.kept, moves

    @classmethod
    def decode(cls, encoded: tuple[Any, ...]) -> PendingBatch:
        """The same the other way round."""
        batch, alphas, used, kept, moves = encoded

        def again(move: Move) -> Move:
            return move._replace(shape=torch.Size(move.shape), version=move.x._version)

        each = {key: [again(Move(*move)) for move in m] for key, m in moves.items()}
        return cls(batch, alphas, set(used), kept, each)


class Directions:
    """Gives a stage's parameters their tangents, and makes gradients of them.

    Args:
        tangents: What the user chose.
        key: What all draws of this stage share: the seed and the number of the stage.
        named: The stage's parameters, each with the names that patterns may match; the first one is its own.
        groups: The scale of each parameter's group in the optimizer, by its id.
        padding: The row of a parameter, by its id, that is not trained: an embedding's padding.
        device: Where they are.
        per_micro_batch: Whether each micro-batch has tangents of its own.
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
    ) -> None:
        self.tangents, self._key, self._per_micro_batch = tangents, key, per_micro_batch
        self.names = [names for names, _ in named]
        self.parameters = [p for _, p in named]
        self._groups = [groups.get(id(p), 0.0) if p.requires_grad else 0.0 for p in self.parameters]
        self._index = {id(p): i for i, p in enumerate(self.parameters) if p.requires_grad}
        self._padding = {i: padding[id(p)] for i, p in enumerate(self.parameters) if id(p) in padding}
        self._drawer = Drawer(find_distribution(tangents.distribution), device)
        self._scale: tuple[int, list[float]] | None = None  # epoch, and α of each parameter in it
        self.repeated: set[int] = set()  # parameters that a pass has used more than once: drawn once, then held

    def start(self, batch: int, epoch: int) -> PendingBatch:
        """A batch begins: its scale, and its tangents where the user gives them."""
        if self._scale is None or self._scale[0] != epoch:
            found = alphas(self.tangents.scale, epoch, self.names, self._groups)
            self._scale = epoch, [a if p.requires_grad else 0.0 for a, p in zip(found, self.parameters)]
        pending = PendingBatch(batch, self._scale[1])
        if self.tangents.direction is not None:
            pending.kept[0, 0] = self._directed(pending)
            pending.alphas = [a if i in pending.kept[0, 0] else 0.0 for i, a in enumerate(pending.alphas)]
        return pending

    def _directed(self, pending: PendingBatch) -> dict[int, Tensor]:
        """The user's tangents, checked, by the parameter's number."""
        assert self.tangents.direction is not None
        named = {self.names[i][0]: i for i, alpha in enumerate(pending.alphas) if alpha}
        weights = {name: self.parameters[i].detach() for name, i in named.items()}
        given = self.tangents.direction(pending.batch, self._key[1], weights)
        if not isinstance(given, Mapping):
            raise TypeError(
                f"direction gave a {type(given).__name__}: it must give a dict of tangents by parameter name"
            )
        out = {}
        for name, tangent in given.items():
            if name not in named:
                raise ValueError(f"direction gave a tangent for {name!r}, which is no parameter to train of this stage")
            weight = weights[name]
            if not isinstance(tangent, Tensor) or tangent.shape != weight.shape:
                came = tuple(tangent.shape) if isinstance(tangent, Tensor) else type(tangent).__name__
                raise ValueError(f"direction gave {came} for {name!r}: its tangent has the shape {tuple(weight.shape)}")
            out[named[name]] = self._scaled(tangent.detach().to(weight, copy=True), pending, named[name])
        return out

    # -- within a pass ---------------------------------------------------------------------------------------------

    def index_of(self, tensor: Tensor) -> int | None:
        """The number of a parameter to train; None for any other tensor."""
        return self._index.get(id(tensor))

    def draw(self, pending: PendingBatch, key: TangentKey, index: int) -> Tensor:
        """The tangent of a parameter: a fresh tensor, the same as often as it is asked for."""
        u = self._drawer.draw((*self._key, pending.batch, index, *key), self.parameters[index])
        return self._scaled(u, pending, index)

    def _scaled(self, u: Tensor, pending: PendingBatch, index: int) -> Tensor:
        if index in self._padding:
            u[self._padding[index]] = 0
        alpha = pending.alphas[index]
        return u.mul_(alpha) if alpha != 1 else u

    def draw_move(self, pending: PendingBatch, key: TangentKey, move: Move) -> Tensor:
        """What the output of a layer is moved by, before scaling."""
        like = move.x.new_empty(()).expand(move.shape)
        return self._drawer.draw((*self._key, pending.batch, move.weight, *key, move.use), like)

    def alpha_of_move(self, pending: PendingBatch, weight: int, bias: int | None) -> float:
        """The scale of a layer's output: the larger one of its parameters'."""
        return max(pending.alphas[weight], 0.0 if bias is None else pending.alphas[bias])

    # -- gradients -------------------------------------------------------------------------------------------------

    def gradient(self, pending: PendingBatch, derivatives: Derivatives, index: int) -> Tensor | None:
        """The mean of d·u over the tangents of a parameter; None for one that took no part."""
        count, out = self.tangents.tangents, None
        apart = self._per_micro_batch or pending.moved
        sets = {j: {j: d} for j, d in derivatives.items()} if apart else {0: derivatives}
        for which, together in sets.items():
            if index not in pending.moved.get(which, pending.used):
                continue
            found = _together(together)
            for p in range(count):
                kept = pending.kept.get((which, p), {}).get(index)
                u = self.draw(pending, (which, p), index) if kept is None else kept
                d = (found[p] / count).to(u.dtype)
                term = u.mul_(d) if kept is None else u * d
                out = term if out is None else out.add_(term)
        return out

    def moved_gradients(self, pending: PendingBatch, derivatives: Derivatives) -> dict[int, Tensor]:
        """The gradients of layers whose outputs were moved, by parameter.

        Of a sequence in pieces, a move that a recurrent layer remembers counts for the pieces from its own on, any
        other for its own.
        """
        lasting = any(move.lasts for moves in pending.moves.values() for move in moves)
        later = _from_each_on(derivatives) if lasting else {}
        out: dict[int, Tensor] = {}
        for key, moves in pending.moves.items():
            micro, p = key
            for move in moves:
                alpha = self.alpha_of_move(pending, move.weight, move.bias)
                v = self.draw_move(pending, key, move)
                d = (later if move.lasts else derivatives)[micro][p]
                found = gradients(move, v, d / self.tangents.tangents, self.parameters[move.weight])
                for index, g in zip((move.weight, move.bias), found):
                    if index is not None and pending.alphas[index]:
                        g = g.mul_(pending.alphas[index] ** 2 / alpha).to(self.parameters[index].dtype)
                        out[index] = out[index].add_(g) if index in out else g
        return out


def _together(derivatives: Derivatives) -> Tensor:
    """One number for each tangent: micro-batches and samples summed."""
    each = [d if d.dim() == 1 else d.sum(1) for d in derivatives.values()]
    return each[0] if len(each) == 1 else torch.stack(each).sum(0)


def _from_each_on(derivatives: Derivatives) -> Derivatives:
    """Of each piece, its own and all later ones together.

    Example:
        >>> _from_each_on({0: torch.tensor(1.0), 1: torch.tensor(2.0), 2: torch.tensor(4.0)})
        {2: tensor(4.), 1: tensor(6.), 0: tensor(7.)}
    """
    order = sorted(derivatives, reverse=True)
    return dict(zip(order, accumulate((derivatives[micro] for micro in order), torch.add)))


class TangentSource:
    """The tangents of one pass."""

    def __init__(self, directions: Directions, pending: PendingBatch, key: TangentKey) -> None:
        self._directions, self._pending, self._tangent_key = directions, pending, key
        tangents = directions.tangents
        self._keeps = not tangents.checkpoint or tangents.direction is not None
        self._held: dict[int, Tensor] = pending.kept.setdefault(key, {}) if self._keeps else {}
        self._seen: set[int] = set()
        self.index_of = directions.index_of

    def tangent(self, index: int) -> Tensor | None:
        """The tangent of a parameter, None for one that is not moved."""
        if not self._pending.alphas[index]:
            return None
        self._pending.used.add(index)
        if index in self._held:
            return self._held[index]
        u = self._directions.draw(self._pending, self._tangent_key, index)
        if index in self._seen:
            self._directions.repeated.add(index)
        self._seen.add(index)
        if self._keeps or index in self._directions.repeated:
            self._held[index] = u
        return u
