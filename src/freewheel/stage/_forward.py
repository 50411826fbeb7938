"""A stage that learns from a directional derivative: it runs forwards only, on dual numbers.

::

    stage 0   (x, 0) ──F──▶ (h_1, o_1)          tangents u_k are drawn within F, and once more for the update
    stage 1                 (h_1, o_1) ──F──▶ (loss, d)
    d ──▶ every stage: its gradient is d·u_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual

from freewheel.stage._corrections import Gradients
from freewheel.stage._dual import DualStage
from freewheel.stage._handover import Dual, taken_apart
from freewheel.stage._stage import Tree, Unit, add
from freewheel.stage._trees import flatten, to_device, unflatten
from freewheel.stage._weights import Live, Weights
from freewheel.tangents import Derivatives, Directions, Waiting

# Optimizers that treat each parameter by itself, so that it makes no difference how many of them a step is for.
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class Found(NamedTuple):
    """What the last stage finds out about a micro-batch: its part of the loss, and the derivative by each tangent."""

    micro: int
    loss: Tensor
    size: int
    derivatives: Tensor


class ForwardStage(DualStage):
    """Forward and update are its only verbs."""

    def __post_init__(self) -> None:
        self._names: Mapping[int, str] = {}
        super().__post_init__()
        self._forget()

    def name_parameters(self, names: Mapping[int, str]) -> None:
        """Tells which names parameters have in the whole network, by their id: patterns may use these too."""
        self._names = names
        self._directions = self._make_directions()

    @property
    def names(self) -> list[tuple[str, ...]]:
        """Each parameter's names: its own, that with the stage's number, that in the whole network."""
        return self._directions.names

    def _make_directions(self) -> Directions:
        named = [
            ((name, f"{self.index}.{name}", *([self._names[id(p)]] if id(p) in self._names else [])), p)
            for name, p in self.module.named_parameters()
        ]
        groups = self.optimizer.param_groups if self.optimizer else ()
        alphas = {id(p): float(group.get("alpha", 1.0)) for group in groups for p in group["params"]}
        tables = [m for m in self.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        padding = {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None}
        return Directions(self.tangents, (self.options.seed, self.index), named, alphas, padding, self.device)

    def _make_weights(self) -> Weights:
        return Live(self.module)

    def _forget(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._found: dict[int, list[Found]] = {}
        self._learns: tuple[Waiting, Derivatives] | None = None
        self._gradients: Gradients = []

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, Any]:
        """What each batch leaves behind until its derivative is known."""
        return {
            **super().pending(),
            "waiting": {batch: waiting.packed() for batch, waiting in self._waiting.items()},
            "found": {batch: [tuple(f) for f in found] for batch, found in self._found.items()},
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Takes these up again."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        self._waiting = {batch: Waiting.unpacked(waiting) for batch, waiting in pending["waiting"].items()}
        self._found = {batch: [Found(*f) for f in found] for batch, found in pending["found"].items()}

    def packed(self, message: Tree) -> Tree:
        """A dual number as a pair."""
        return None if message is None else tuple(message)

    def unpacked(self, message: Tree) -> Tree:
        """A pair as a dual number."""
        return None if message is None else Dual(*message)

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """One pass of dual numbers for each tangent. A share of 0 has no loss: a sequence that is not at its end."""
        batch, micro = unit
        if batch not in self._waiting:
            self._waiting[batch] = self._directions.start(self.first_batch + batch, self.epoch)
        if x is None:
            return None
        given = to_device(x, self.device)
        values, tangents = given if isinstance(given, Dual) else (given, [])
        leaves, shape = flatten(values)
        moved: list[list[Tensor | None]] = tangents or [[None] * len(leaves)] * self.tangents.tangents
        self._share = share
        out = self._passes(unit, self._waiting[batch], (leaves, shape), moved, target, share > 0)
        if not self.is_last:
            return self._passed_on(out, self._waiting[batch])
        loss = out[0][0]
        derivatives = torch.stack([d for _, (d,) in out]) * (share * weight)  # pyright: ignore
        found = Found(micro, loss * share, size, derivatives)
        self._found.setdefault(batch, []).append(found)
        return loss

    def _finish(self, out: Tree, target: Tree) -> tuple[Tensor, Tensor]:
        """The loss and its directional derivative; for moved activations one for each sample."""
        values, tangents = taken_apart(out)
        first = next(t for t in flatten(values)[0] if isinstance(t, Tensor))
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
        self._learns = self._waiting.pop(batch), to_device(derivatives, self.device)

    def derivatives(self, batch: int) -> Derivatives:
        """The directional derivatives that the next update uses; the last stage makes them from what it found."""
        if self._learns is None:
            self.learn(batch, self._derived(self._found.pop(batch)))
        assert self._learns is not None
        return self._learns[1]

    def _derived(self, found: list[Found]) -> Derivatives:
        self.losses.append((torch.stack([f.loss for f in found]).sum(0), sum(f.size for f in found)))
        if self.tangents.each == "micro" or self.tangents.perturb == "activations":
            return {self.first_piece + f.micro: f.derivatives for f in found}
        return {self.replica: torch.stack([f.derivatives for f in found]).sum(0)}

    def share(self) -> tuple[Derivatives, list[int]]:
        """This replica's directional derivatives, and which parameters its tangents have moved."""
        assert self._learns is not None
        waiting, derivatives = self._learns
        return derivatives, sorted(waiting.used)

    def gather(self, shares: Sequence[tuple[Derivatives, list[int]]]) -> None:
        """Takes all derivatives; the tangents of the other replicas are drawn here where the update needs them."""
        assert self._learns is not None
        waiting, every = self._learns[0], {}
        for derivatives, used in shares:
            every |= to_device(derivatives, self.device)
            waiting.moved |= {piece: set(used) for piece in derivatives}
        self._learns = waiting, every

    def norms(self) -> Tensor:
        """The norm of each weight's gradient, for clipping by the norm over all stages."""
        self._gradients = self._all_gradients()
        norms = [torch.linalg.vector_norm(g) for g in self._gradients if g is not None]
        return torch.stack(norms) if norms else torch.zeros(0, device=self.device)

    def update(self, norm: Tensor | None = None) -> None:
        """Applies d·u. Where nothing needs all gradients at once, they are made and used a few at a time.

        So no more of them are held than the largest parameter takes.
        """
        assert self._learns is not None
        if self._needs_all():
            gradients = self._gradients or self._all_gradients()
            self._apply(gradients, self.weights.live, norm)
        else:
            self._trickle()
        self._gradients, self._learns = [], None

    def _needs_all(self) -> bool:
        """Whether anything looks at all gradients of a batch together."""
        optimizer = self.optimizer
        apart = type(optimizer) in ELEMENTWISE and not optimizer._optimizer_step_pre_hooks  # pyright: ignore
        apart = apart and not optimizer._optimizer_step_post_hooks  # pyright: ignore
        return bool(self.hooks) or self.options.clip is not None or self.tangents.perturb == "activations" or not apart

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
