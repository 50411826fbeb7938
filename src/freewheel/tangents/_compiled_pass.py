"""A stage's dual pass, compiled for one form of its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import make_dual

from freewheel.stage import Shape, flatten, tensors_among, unflatten
from freewheel.tangents._compiled import Given, compiled
from freewheel.tangents._mode import DualMode

SplitDuals = tuple[Any, list[Tensor | None]]  # values, and the tangents of their leaves


class CompiledPass:
    """The pass of a module on inputs of one form, for all tangents at once.

    Args:
        call: Runs the module on a dual input and a target, and splits the result into values and tangents.
        index_of: The number of a parameter of the stage, None for any other tensor.
        x: The input's leaves and shape.
        moved: For each tangent, the input's tangents; None for a leaf that has none.
        target: The target's leaves and shape.
        us: For each parameter that takes part, its tangents, stacked.
        edits: Whether the module changes its input in place; tracing does so to the one given here.
    """

    def __init__(
        self,
        call: Callable[[Any, Any], SplitDuals],
        index_of: Callable[[Tensor], int | None],
        x: tuple[list[Any], Shape],
        moved: list[list[Tensor | None]],
        target: tuple[list[Any], Shape],
        us: dict[int, Tensor],
        *,
        edits: bool,
    ) -> None:
        self.used, self.edits = list(us), edits
        self.signature = signature_of(x[0], moved[0], target[0])  # the only one that it is made for
        self._moves = [o is not None for o in moved[0]]
        constants = [None if isinstance(t, Tensor) else t for t in (*x[0], *target[0])]
        present = [isinstance(t, Tensor) for t in (*x[0], *target[0])]
        seen: list[SplitDuals] = []  # what the trace gave

        def run(values: list[Tensor], tangents: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            left, ours = iter(values), iter(tangents)
            every = [next(left) if has else constant for constant, has in zip(constants, present)]
            leaves, goal = every[: len(x[0])], every[len(x[0]) :]
            duals = [make_dual(leaf, next(ours)) if moves else leaf for leaf, moves in zip(leaves, self._moves)]
            source = Given(index_of, dict(zip(self.used, ours)))
            with torch.enable_grad(), DualMode(source, {}):
                seen.append(call(unflatten(duals, x[1]), unflatten(goal, target[1])))
            out, found = seen[-1]
            return tensors_among(flatten(out)[0]), tensors_among(found)

        self._run = compiled(run, tensors_among([*x[0], *target[0]]), [*self._stacked(moved), *us.values()])
        out, found = seen[0]
        leaves, self._shape = flatten(out)
        self._leaves = [None if isinstance(t, Tensor) else t for t in leaves]
        self._found = [t is not None for t in found]

    def __call__(
        self, x: list[Any], moved: list[list[Tensor | None]], target: list[Any], us: list[Tensor]
    ) -> list[SplitDuals]:
        """Runs it; gives the result for each tangent."""
        with torch.no_grad():
            values, tangents = self._run(tensors_among([*x, *target]), [*self._stacked(moved), *us])
        left = iter(values)
        out = unflatten([next(left) if leaf is None else leaf for leaf in self._leaves], self._shape)
        results: list[SplitDuals] = []
        for p in range(len(moved)):
            each = iter(tangents)
            results.append((out, [next(each)[p] if has else None for has in self._found]))
        return results

    def _stacked(self, moved: list[list[Tensor | None]]) -> list[Tensor]:
        """The input's tangents, stacked, for the leaves that have any."""
        each = [[o for o in leaf if o is not None] for leaf in zip(*moved)]
        return [torch.stack(leaf) for leaf, moves in zip(each, self._moves) if moves]


def signature_of(*lists: Sequence[Any]) -> list[Any]:
    """What a compiled pass depends on: the form of each tensor, and whatever else there is."""
    leaves = [t for tensors in lists for t in tensors]
    return [(tuple(t.shape), tuple(t.stride()), str(t.dtype)) if isinstance(t, Tensor) else t for t in leaves]
