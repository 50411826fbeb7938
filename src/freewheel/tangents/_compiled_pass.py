"""The dual pass of a stage, compiled for one form of its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import make_dual

from freewheel.stage import Shape, filled, flatten, map_tensors, template_of, tensors_among, unflatten
from freewheel.tangents._compiled import FixedTangents, compiled
from freewheel.tangents._mode import DualMode
from freewheel.tangents._rules import FUSED_RULES, RULES

SplitDuals = tuple[Any, list[Tensor | None]]  # values, and the tangents of their leaves


class CompiledPass:
    """The pass of a module on inputs of one form, for all tangents at once.

    Args:
        call: Runs the module on a dual input and a target, and splits the result into values and tangents.
        index_of: Returns the index of a parameter of the stage, None for any other tensor.
        x: The input's leaves and shape.
        input_tangents: For each tangent, the input's tangents; None for a leaf without one.
        target: The target's leaves and shape.
        used: The used parameters.
        given: What their tangents are computed from.
        draw: Computes the stacked tangents of each used parameter, inside the compiled function.
        edits: Whether the module changes its input in place, as tracing does with `x`.
    """

    def __init__(
        self,
        call: Callable[[Any, Any], SplitDuals],
        index_of: Callable[[Tensor], int | None],
        x: tuple[list[Any], Shape],
        input_tangents: list[list[Tensor | None]],
        target: tuple[list[Any], Shape],
        used: Sequence[int],
        given: Sequence[Tensor],
        draw: Callable[[Sequence[Tensor]], list[Tensor]],
        *,
        edits: bool,
    ) -> None:
        self.used, self.edits = list(used), edits
        self.signature = signature_of(x[0], input_tangents[0], target[0])
        self._has_tangent = [o is not None for o in input_tangents[0]]
        template = template_of([*x[0], *target[0]])
        seen: list[SplitDuals] = []  # the results of tracing
        rules = FUSED_RULES if any(t.is_cuda for t in tensors_among(x[0])) else RULES

        def run(values: list[Tensor], tangents: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            every, ours = filled(template, values), iter(tangents)
            leaves, goal = every[: len(x[0])], every[len(x[0]) :]
            duals = [make_dual(leaf, next(ours)) if has else leaf for leaf, has in zip(leaves, self._has_tangent)]
            source = FixedTangents(index_of, dict(zip(self.used, ours)))
            with torch.enable_grad(), DualMode(source, {}, rules):
                seen.append(call(unflatten(duals, x[1]), unflatten(goal, target[1])))
            out, found = seen[-1]
            return tensors_among(flatten(out)[0]), tensors_among(found)

        stacked = self._stacked(input_tangents)
        self._run = compiled(
            run,
            tensors_among([*x[0], *target[0]]),
            [*stacked, *given],
            lambda every: [*every[: len(stacked)], *draw(every[len(stacked) :])],
        )
        out, found = seen[0]
        leaves, self._shape = flatten(out)
        self._template = template_of(leaves)
        self._found = [t is not None for t in found]

    def __call__(
        self, x: list[Any], input_tangents: list[list[Tensor | None]], target: list[Any], given: Sequence[Tensor]
    ) -> list[SplitDuals]:
        """Run the pass and return the result for each tangent."""
        with torch.no_grad():
            values, tangents = self._run(tensors_among([*x, *target]), [*self._stacked(input_tangents), *given])
        out = unflatten(filled(self._template, values), self._shape)
        results: list[SplitDuals] = []
        for p in range(len(input_tangents)):
            each = iter(tangents)
            results.append((out, [next(each)[p] if has else None for has in self._found]))
        return results

    def _stacked(self, input_tangents: list[list[Tensor | None]]) -> list[Tensor]:
        """Stack the input's tangents, for the leaves that have any."""
        each = [[o for o in leaf if o is not None] for leaf in zip(*input_tangents)]
        return [torch.stack(leaf) for leaf, has in zip(each, self._has_tangent) if has]


def signature_of(*lists: Sequence[Any]) -> list[Any]:
    """Return what a compiled pass depends on: the form of each tensor, and all other leaves."""
    leaves = [t for tensors in lists for t in tensors]
    return map_tensors(lambda t: (tuple(t.shape), tuple(t.stride()), str(t.dtype)), leaves)
