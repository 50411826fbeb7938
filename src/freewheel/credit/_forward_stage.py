"""Stages that learn from a directional derivative, by forwards on dual numbers only.

::

    stage 0   (x, 0) ──F──▶ (h_1, o_1)          tangents u_k are drawn in F, and redrawn in the update
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
from freewheel.credit._dual_stage import DualInput, DualStage
from freewheel.credit._graph import gradient_norms
from freewheel.plan import Message, Op, Unit
from freewheel.split import read_directly
from freewheel.stage import (
    NO_GRAPH,
    Blueprint,
    Live,
    Tree,
    Verbs,
    WeightVersions,
    add,
    check_no_hooks,
    check_no_module_hooks,
    check_not_compiled,
    flatten,
    tensors_among,
    to_device,
    unflatten,
)
from freewheel.tangents import Derivatives, Directions, Dual, PendingBatch, split_duals

if TYPE_CHECKING:
    from freewheel.credit.forward import Forward

DERIVATIVE = Message("d", "directional derivative", way=-1, made_by=Op.FORWARD, needed_by=Op.UPDATE, relayed=True)
# Optimizers that treat each parameter independently, so that a step may be split by parameters.
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class MicroResult(NamedTuple):
    """The result of a micro-batch at the last stage: its share of the loss, and the derivative for each tangent."""

    micro: int
    loss: Tensor
    size: int
    derivatives: Tensor


class ForwardStage(DualStage):
    """A stage with forwards and updates only."""

    def __init__(self, blueprint: Blueprint, forward: Forward) -> None:
        super().__init__(blueprint, forward)
        self._forget()

    def verbs(self) -> Verbs:
        """Add directional derivatives, from the last stage to all."""
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
        others = read_directly(self.module) | {
            id(p) for m in self.module.modules() if m not in tables for p in m._parameters.values()
        }
        padding = {id(m.weight): m.padding_idx for m in tables if m.padding_idx is not None}
        padding = {key: row for key, row in padding.items() if key not in others}
        key, own = (self.config.seed, self.index), self.tangents.each == "micro"
        return Directions(self.tangents, key, named, alphas, padding, self.device, per_micro_batch=own)

    def check(self) -> None:
        """Reject gradient hooks, since there is no backward, and optimizers of sparse gradients."""
        if isinstance(self.optimizer, torch.optim.SparseAdam):
            raise TypeError(
                f"optimizer of stage {self.index} is a SparseAdam, but forward gradients are dense: give Adam, or "
                "train with a method of the chain rule, such as 'pipedream'"
            )
        check_no_hooks(self.module, self.index, "a method of forward gradients")
        check_no_module_hooks(self.module, self.index, "a method of forward gradients")
        check_not_compiled(self.module, self.index, "a method of forward gradients")

    def _make_weights(self) -> WeightVersions:
        return Live(self.module)

    def _forget(self) -> None:
        self._batches: dict[int, PendingBatch] = {}
        self._results: dict[int, list[MicroResult]] = {}
        self._learns: tuple[PendingBatch, Derivatives] | None = None  # the batch of the next update
        self._gradients: Gradients = []

    def pending(self) -> dict[str, Any]:
        """Add the batches whose derivative is not known yet."""
        return {
            **super().pending(),
            "batches": {batch: pending.encode() for batch, pending in self._batches.items()},
            "found": {batch: [tuple(r) for r in results] for batch, results in self._results.items()},
        }

    def restore(self, pending: dict[str, Any]) -> None:
        """Restore these batches."""
        pending = to_device(pending, self.device)
        super().restore(pending)
        self._batches = {batch: PendingBatch.decode(each) for batch, each in pending["batches"].items()}
        self._results = {batch: [MicroResult(*r) for r in results] for batch, results in pending["found"].items()}

    def encode(self, message: Tree) -> Tree:
        """Convert a dual number to a pair."""
        return None if message is None else tuple(message)

    def decode(self, message: Tree) -> Tree:
        """Invert `encode`."""
        return None if message is None else Dual(*message)

    def forward(
        self, unit: Unit, x: Tree, target: Tree = None, size: int = 0, share: float = 1.0, weight: float = 1.0
    ) -> Tree:
        """Run one dual pass per tangent. A share of 0 has no loss: a sequence before its end."""
        batch, micro = unit
        if batch not in self._batches:
            self._batches[batch] = self._directions.start(self.first_batch + batch, self.epoch)
        if x is None:
            return None
        given = to_device(x, self.device)
        values, tangents = given if self.index else (given, [])
        leaves, shape = flatten(values)
        self._share = share
        none: list[list[Tensor | None]] = [[None] * len(leaves)] * self.tangents.tangents
        out = self._passes(unit, self._batches[batch], DualInput(leaves, shape, tangents or none, target, share > 0))
        if not self.is_last:
            return self._message(out, self._batches[batch])
        loss = out[0][0]
        derivatives = torch.stack([d for _, (d,) in out]) * (share * weight)  # pyright: ignore
        self._results.setdefault(batch, []).append(MicroResult(micro, loss * share, size, derivatives))
        return loss

    def _finish(self, out: Tree, target: Tree) -> tuple[Tensor, Tensor]:
        """Return the loss and its directional derivative, per sample with perturbed activations."""
        values, tangents = split_duals(out)
        first = tensors_among(flatten(values)[0])[0]
        samples = first.new_zeros(first.shape[0] if self.tangents.perturb == "activations" else ())
        if not self._share:
            return first.new_zeros(()), samples
        if self.tangents.perturb == "weights":
            loss, d = unpack_dual(self._loss(out, target))
            if d is None and any(o is not None for o in tangents):
                raise ValueError(NO_GRAPH)
            return loss, torch.zeros_like(loss) if d is None else d
        leaves, shape = flatten(values)
        leaves = [v if o is None else v.detach().requires_grad_() for v, o in zip(leaves, tangents)]
        loss = self._loss(unflatten(leaves, shape), target)
        pairs = [(v, o) for v, o in zip(leaves, tangents) if o is not None]
        found = torch.autograd.grad(loss, [v for v, _ in pairs], allow_unused=True) if pairs else ()
        for g, (_, o) in zip(found, pairs):
            samples = samples if g is None else samples + (g * o).flatten(1).sum(1)
        return loss.detach(), samples

    def learn(self, batch: int, derivatives: Derivatives) -> None:
        """Set the directional derivatives of a batch for the next update."""
        self._learns = self._batches.pop(batch), to_device(derivatives, self.device)

    def derivatives(self, batch: int) -> Derivatives:
        """Return the directional derivatives of the next update; the last stage computes them from its results."""
        if self._learns is None:
            self.learn(batch, self._derivatives(self._results.pop(batch)))
        assert self._learns is not None
        return self._learns[1]

    def _derivatives(self, results: list[MicroResult]) -> Derivatives:
        self.losses.append((torch.stack([r.loss for r in results]).sum(0), sum(r.size for r in results)))
        if self.tangents.each == "micro" or self.tangents.perturb == "activations":
            return {self.first_micro_batch + r.micro: r.derivatives for r in results}
        return {self.replica: torch.stack([r.derivatives for r in results]).sum(0)}

    def contribution(self) -> tuple[Derivatives, list[int]]:
        """Return this replica's directional derivatives and used parameters."""
        assert self._learns is not None
        pending, derivatives = self._learns
        return derivatives, sorted(pending.used)

    def all_reduce(self, contributions: Sequence[tuple[Derivatives, list[int]]]) -> None:
        """Collect all derivatives; the update redraws the tangents of the other replicas."""
        assert self._learns is not None
        pending, every = self._learns[0], {}
        for derivatives, used in contributions:
            every |= to_device(derivatives, self.device)
            pending.used_by |= {number: set(used) for number in derivatives}
        self._learns = pending, every

    def norms(self) -> Tensor:
        """Return the norm of each weight's gradient, for global clipping."""
        self._gradients = self._all_gradients()
        return gradient_norms(self._gradients, self.device)

    def update(self, batch: int) -> None:
        """Make the update of a batch."""
        self.derivatives(batch)
        super().update(batch)

    def _update(self) -> None:
        """Apply d·u, a few parameters at a time unless all gradients are needed at once.

        Gradients then take no more memory than the largest parameter.
        """
        if self._needs_all():
            gradients = self._gradients or self._all_gradients()
            self._apply(gradients, self.weights.live)
        else:
            self._trickle()
        self._gradients, self._learns = [], None

    def _needs_all(self) -> bool:
        """Whether anything needs all gradients of a batch at once."""
        optimizer = self.optimizer
        elementwise = type(optimizer) in ELEMENTWISE and not optimizer._optimizer_step_pre_hooks  # pyright: ignore
        elementwise = elementwise and not optimizer._optimizer_step_post_hooks  # pyright: ignore
        clips, perturbs = self.config.clip is not None, self.tangents.perturb == "activations"
        return bool(self.corrections) or clips or perturbs or not elementwise

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
        self._step()  # even without gradients left, so that the optimizer counts the step
        self._stepped()
        self.version += 1

    @torch.no_grad()
    def _all_gradients(self) -> Gradients:
        assert self._learns is not None
        of_activations = self._directions.activation_gradients(*self._learns)
        of_weights = (
            (i, self._directions.gradient(*self._learns, i))
            for i, p in enumerate(self._directions.parameters)
            if p.requires_grad
        )
        return [add(g, of_activations.get(i)) for i, g in of_weights]


def parameter_names(blueprint: Blueprint) -> list[tuple[str, ...]]:
    """Return each parameter's names: in the stage, with the stage's number, in the whole network."""
    own = [name for name, _ in blueprint.module.named_parameters()]
    return [(name, f"{blueprint.index}.{name}", *([full] if full else [])) for name, full in zip(own, blueprint.names)]
