"""A stage that learns from a directional derivative: it runs forwards only, on dual numbers.

::

    stage 0   (x, 0) ──F──▶ (h_1, o_1)          tangents u_k are drawn within F, and once more for the update
    stage 1                 (h_1, o_1) ──F──▶ (loss, d)
    d ──▶ every stage: its gradient is d·u_k
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from freewheel.corrections import Gradients
from freewheel.credit._dual_stage import DualStage
from freewheel.plan import Message, Op, Unit
from freewheel.stage import (
    Blueprint,
    Live,
    Tree,
    Verbs,
    WeightVersions,
    add,
    flatten,
    tensors_among,
    to_device,
    unflatten,
)
from freewheel.tangents import Derivatives, Directions, Dual, PendingBatch, split_duals

if TYPE_CHECKING:
    from freewheel.credit.forward import Forward

DERIVATIVE = Message("d", "directional derivative", way=-1, made_by=Op.FORWARD, needed_by=Op.UPDATE, relayed=True)
# Optimizers that treat each parameter by itself, so that it makes no difference how many of them a step is for.
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class MicroResult(NamedTuple):
    """What the last stage finds out about a micro-batch: its part of the loss, and the derivative by each tangent."""

    micro: int
    loss: Tensor
    size: int
    derivatives: Tensor


class ForwardStage(DualStage):
    """Forward and update are its only verbs."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint, forward)
        self._forget()

    def verbs(self) -> Verbs:
        """Directional derivatives go from the last stage to all."""
        return {
            **super().verbs(),
            DERIVATIVE.send: lambda unit: self.derivatives(unit[0]),
            DERIVATIVE.receive: lambda unit, derivatives: self.learn(unit[0], derivatives),
        }

    def _make_directions(self) -> Directions:
        named = list(zip(parameter_names(self.blueprint), self.module.parameters()))
        groups = self.optimizer.param_groups if self.optimizer else ()
        alphas = {id(p): float(group.get("alpha", 1.0)) for group in groups for p in group["params"]}
        tables = [m for m in self.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        padding = {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None}
        key, own = (self.config.seed, self.index), self.tangents.each == "micro"
        return Directions(self.tangents, key, named, alphas, padding, self.device, per_micro_batch=own)

    def _make_weights(self) -> WeightVersions:
        return Live(self.module)

    def _forget(self) -> None:
        self._batches: dict[int, PendingBatch] = {}
        self._found: dict[int, list[MicroResult]] = {}
        self._learns: tuple[PendingBatch, Derivatives] | None = None
        self._gradients: Gradients = []

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, Any]:
        """What each batch leaves behind until its derivative is known."""
        return {
            **super().pending(),
            "batches": {batch: pending.encode() for batch, pending in self._batches.items()},
            "found": {batch: [tuple(f) for f in found] for batch, found in self._found.items()},
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Takes these up again."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        self._batches = {batch: PendingBatch.decode(each) for batch, each in pending["batches"].items()}
        self._found = {batch: [MicroResult(*f) for f in found] for batch, found in pending["found"].items()}

    def encode(self, message: Tree) -> Tree:
        """A dual number as a pair."""
        return None if message is None else tuple(message)

    def decode(self, message: Tree) -> Tree:
        """A pair as a dual number."""
        return None if message is None else Dual(*message)

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """One pass of dual numbers for each tangent. A share of 0 has no loss: a sequence that is not at its end."""
        batch, micro = unit
        if batch not in self._batches:
            self._batches[batch] = self._directions.start(self.first_batch + batch, self.epoch)
        if x is None:
            return None
        given = to_device(x, self.device)
        values, tangents = given if isinstance(given, Dual) else (given, [])
        leaves, shape = flatten(values)
        moved: list[list[Tensor | None]] = tangents or [[None] * len(leaves)] * self.tangents.tangents
        self._share = share
        out = self._passes(unit, self._batches[batch], (leaves, shape), moved, target, share > 0)
        if not self.is_last:
            return self._passed_on(out, self._batches[batch])
        loss = out[0][0]
        derivatives = torch.stack([d for _, (d,) in out]) * (share * weight)  # pyright: ignore
        found = MicroResult(micro, loss * share, size, derivatives)
        self._found.setdefault(batch, []).append(found)
        return loss

    def _finish(self, out: Tree, target: Tree) -> tuple[Tensor, Tensor]:
        """The loss and its directional derivative; for moved activations one for each sample."""
        values, tangents = split_duals(out)
        first = tensors_among(flatten(values)[0])[0]
        samples = first.new_zeros(first.shape[0] if self.tangents.perturb == "activations" else ())
        if not self._share:
            return first.new_zeros(()), samples
        if self.tangents.perturb == "weights":
            loss, d = unpack_dual(self._loss(out, target))
            return loss, torch.zeros_like(loss) if d is None else d
        leaves, shape = flatten(values)
        leaves = [v if o is None else v.detach().requires_grad_() for v, o in zip(leaves, tangents)]
        loss = self._loss(unflatten(leaves, shape), target)
        moved = [(v, o) for v, o in zip(leaves, tangents) if o is not None]
        for g, (_, o) in zip(
            torch.autograd.grad(loss, [v for v, _ in moved], allow_unused=True) if moved else (), moved
        ):
            samples = samples if g is None else samples + (g * o).flatten(1).sum(1)
        return loss.detach(), samples

    # -- update ----------------------------------------------------------------------------------------------------

    def learn(self, batch: int, derivatives: Derivatives) -> None:
        """Takes the directional derivatives of a batch; the update that follows uses them."""
        self._learns = self._batches.pop(batch), to_device(derivatives, self.device)

    def derivatives(self, batch: int) -> Derivatives:
        """The directional derivatives that the next update uses; the last stage makes them from what it found."""
        if self._learns is None:
            self.learn(batch, self._derived(self._found.pop(batch)))
        assert self._learns is not None
        return self._learns[1]

    def _derived(self, found: list[MicroResult]) -> Derivatives:
        self.losses.append((torch.stack([f.loss for f in found]).sum(0), sum(f.size for f in found)))
        if self.tangents.each == "micro" or self.tangents.perturb == "activations":
            return {self.first_piece + f.micro: f.derivatives for f in found}
        return {self.replica: torch.stack([f.derivatives for f in found]).sum(0)}

    def contribution(self) -> tuple[Derivatives, list[int]]:
        """This replica's directional derivatives, and which parameters its tangents have moved."""
        assert self._learns is not None
        pending, derivatives = self._learns
        return derivatives, sorted(pending.used)

    def all_reduce(self, contributions: Sequence[tuple[Derivatives, list[int]]]) -> None:
        """Takes all derivatives; the tangents of the other replicas are drawn here where the update needs them."""
        assert self._learns is not None
        pending, every = self._learns[0], {}
        for derivatives, used in contributions:
            every |= to_device(derivatives, self.device)
            pending.moved |= {piece: set(used) for piece in derivatives}
        self._learns = pending, every

    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""
        self._gradients = self._all_gradients()
        norms = [torch.linalg.vector_norm(g) for g in self._gradients if g is not None]
        return torch.stack(norms) if norms else torch.zeros(0, device=self.device)

    def update(self, batch: int) -> None:
        """Makes the update of a batch."""
        self.derivatives(batch)
        super().update(batch)

    def _update(self) -> None:
        """Applies d·u. Where nothing needs all gradients at once, they are made and used a few at a time.

        So no more of them are held than the largest parameter takes.
        """
        if self._needs_all():
            gradients = self._gradients or self._all_gradients()
            self._apply(gradients, self.weights.live)
        else:
            self._trickle()
        self._gradients, self._learns = [], None

    def _needs_all(self) -> bool:
        """Whether anything looks at all gradients of a batch together."""
        optimizer = self.optimizer
        apart = type(optimizer) in ELEMENTWISE and not optimizer._optimizer_step_pre_hooks  # pyright: ignore
        apart = apart and not optimizer._optimizer_step_post_hooks  # pyright: ignore
        return (
            bool(self.corrections)
            or self.config.clip is not None
            or self.tangents.perturb == "activations"
            or not apart
        )

    @torch.no_grad()
    def _trickle(self) -> None:
        assert self._learns is not None
        held, largest = 0, max((p.numel() for p in self.weights.live), default=0)
        for index, weight in enumerate(self._directions.parameters):
            weight.grad = self._directions.gradient(*self._learns, index)
            held += 0 if weight.grad is None else weight.numel()
            if held >= largest:
                self._step()
                held = 0
        self._step()  # with nothing left, or nothing at all, it counts all the same
        self._stepped()
        self._updated()

    @torch.no_grad()
    def _all_gradients(self) -> Gradients:
        assert self._learns is not None
        moved = self._directions.moved_gradients(*self._learns)
        of_weights = (
            (i, self._directions.gradient(*self._learns, i))
            for i, p in enumerate(self._directions.parameters)
            if p.requires_grad
        )
        return [add(g, moved.get(i)) for i, g in of_weights]


def parameter_names(blueprint: Blueprint) -> list[tuple[str, ...]]:
    """Each parameter's names: its own, that with the stage's number, that in the whole network."""
    own = [name for name, _ in blueprint.module.named_parameters()]
    return [(name, f"{blueprint.index}.{name}", *([full] if full else [])) for name, full in zip(own, blueprint.names)]
