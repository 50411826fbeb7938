"""Autograd graphs of a stage's forwards: what is stored of them, what they contain, and their backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel._trees import differentiable
from freewheel.corrections import Gradients
from freewheel.stage import Tree, flatten, tensors_among, unflatten

Cotangents = Sequence[tuple[Tensor, Tensor | None]]  # outputs, each with its gradient; None for the loss
REENTRANT = (
    "stages[{stage}] uses torch.utils.checkpoint with use_reentrant=True, which learns nothing where no gradient "
    "passes to the stage before: give use_reentrant=False"
)
EDITS_LATE = (
    "stages[{stage}] changes its input in place in batch {batch}, but not in the first, so that it was given no copy: "
    "change a copy (x = x.clone()), or do it in every batch"
)
UNUSED = (
    "an output of stages[{stage}] gets no gradient from the next stage, which compiled code would take for zeros: "
    "detach it in the stage that makes it, or leave compile out"
)


class Valued(torch.autograd.Function):
    """A copy of one tensor that passes its gradient on to another.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = Valued.apply(torch.tensor(5.0), 2 * x)
        >>> y.item(), torch.autograd.grad(y**2, x)[0].item()        # 2 · 5, passed on through 2x
        (5.0, 20.0)
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, through: Tensor) -> Tensor:
        """Return the value."""
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of the second argument."""
        return None, gradients[0]


def valued(value: Tree, through: Tree) -> Tree:
    """Return the tree of these values whose gradients pass through another tree of the same shape."""
    values, (leaves, shape) = flatten(value)[0], flatten(through)
    pairs = zip(values, leaves)
    return unflatten([Valued.apply(v, t) if isinstance(t, Tensor) and t.requires_grad else v for v, t in pairs], shape)


@dataclass(slots=True, eq=False)
class Graph:
    """The autograd graph of a forward, pending its backward."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    gradient_slots: Sequence[int | None]  # for each output, the index of its gradient; None for the loss
    weights: Sequence[Tensor]
    version: int

    def cotangents(self, gradients: Gradients | None, compiled: int | None) -> Cotangents:
        """Return the outputs that have a gradient, and the loss, each with its gradient; None for the loss.

        `compiled` is the number of the stage if its backward is compiled, and so needs the gradient of every output.
        """
        found = [(t, None if i is None else gradients[i], i) for t, i in zip(self.outputs, self.gradient_slots)]  # pyright: ignore
        if compiled is not None and any(i is not None and gradient is None for _, gradient, i in found):
            raise ValueError(UNUSED.format(stage=compiled))
        return [(t, gradient) for t, gradient, i in found if i is None or gradient is not None]


class StoredInput(NamedTuple):
    """The arguments of a forward that will be recomputed."""

    inputs: Tree
    target: Tree
    share: float
    output: Tree = None  # that the loss was taken at, in the last stage


class Retained(NamedTuple):
    """What a checkpoint needs to rebuild the graph of a late stage."""

    inputs: Tree
    target: Tree
    share: float
    buffers: list[Tensor]  # before the forward
    saved: list[Any]  # by autograd, under `weights="current"`


class Contents(NamedTuple):
    """What a graph contains."""

    leaves: list[Tensor]  # that need a gradient
    reentrant: bool  # whether there is a `torch.utils.checkpoint` with `use_reentrant=True`


def contents(outputs: Sequence[Tensor]) -> Contents:
    """Walk the graph of these outputs.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> contents([(weight * 2).sum()]).leaves[0] is weight
        True
    """
    pending: list[Any] = [t.grad_fn for t in outputs]
    seen, leaves, reentrant = set(), [], False
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        reentrant = reentrant or node.name() == "CheckpointFunctionBackward"
        leaf = getattr(node, "variable", None)
        leaves += [leaf] if leaf is not None else []
        pending += [function for function, _ in node.next_functions]
    return Contents(leaves, reentrant)


def gradient_slots(leaves: Sequence[Any]) -> list[int]:
    """Return the index of the gradient of each output that needs one, among those that the next stage sends."""
    sent = enumerate(t for t in tensors_among(leaves) if differentiable(t))
    return [i for i, t in sent if t.requires_grad]


def differentiate(
    pairs: Cotangents, wanted: Sequence[Tensor], *, accumulate: bool = False, retain: bool = False
) -> Gradients:
    """Return the gradients of the wanted tensors, None for those that the outputs do not depend on.

    With `accumulate`, they are collected as `backward()` does it, which reentrant checkpoints need. With `retain`, the
    graph can be used again.
    """
    if not pairs or not wanted:
        return [None] * len(wanted)
    outputs, gradients = [t for t, _ in pairs], [g for _, g in pairs]
    if not accumulate:
        return torch.autograd.grad(outputs, wanted, gradients, retain_graph=retain, allow_unused=True)  # pyright: ignore
    before = [t.grad for t in wanted]
    for t in wanted:
        t.grad = None
    torch.autograd.backward(outputs, gradients, retain_graph=retain)  # pyright: ignore[reportArgumentType]
    found = [t.grad for t in wanted]
    for t, gradient in zip(wanted, before):
        t.grad = gradient
    return found


def gradient_norms(gradients: Gradients, device: torch.device) -> Tensor:
    """Return the norm of each gradient that is not None."""
    norms = [torch.linalg.vector_norm(g) for g in gradients if g is not None]
    return torch.stack(norms) if norms else torch.zeros(0, device=device)


def summed(terms: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum in the given order, in new memory; None if all terms are None."""
    found = [term for term in terms if term is not None]
    if not found:
        return None
    out = found[0].clone()
    for term in found[1:]:
        out += term
    return out
