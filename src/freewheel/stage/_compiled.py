"""A stage's dual pass, compiled for one form of its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import make_dual

from freewheel.stage._trees import Shape, flatten, unflatten
from freewheel.tangents import DualMode, Given, compiled

Apart = tuple[Any, list[Tensor | None]]  # values, and the tangents of their leaves


class CompiledPass:
    """The pass of a module on values and tangents like these.

    Args:
        call: Runs the module on a dual input and a target, and takes the result apart.
        index_of: The number of a parameter of the stage, None for any other tensor.
        used: The parameters that take part.
        leaves: The input's leaves, and their tangents, and the input's shape.
        target: The target's leaves, and its shape.
    """

    def __init__(
        self,
        call: Callable[[Any, Any], Apart],
        index_of: Callable[[Tensor], int | None],
        used: Sequence[int],
        leaves: tuple[list[Any], list[Tensor | None], Shape],
        target: tuple[list[Any], Shape],
        tangents: list[Tensor],
    ) -> None:
        values, moved, shape = leaves
        self.used = list(used)
        self.form = _form(values, moved, target[0])
        constants = [None if isinstance(t, Tensor) else t for t in (*values, *moved, *target[0])]

        present = [isinstance(t, Tensor) for t in (*values, *moved, *target[0])]
        traced: list[tuple[list[Any], Shape, list[Tensor | None]]] = []  # what the trace gave

        def flat(*tensors: Tensor) -> list[Tensor]:
            given = iter(tensors)
            everything = [next(given) if has else c for c, has in zip(constants, present)]
            xs, os = everything[: len(values)], everything[len(values) : 2 * len(values)]
            duals = [x if o is None else make_dual(x, o) for x, o in zip(xs, os)]
            source = Given(index_of, dict(zip(self.used, given)))
            with torch.enable_grad(), DualMode(source, {}):
                out, tangents = call(unflatten(duals, shape), unflatten(everything[2 * len(values) :], target[1]))
            traced.append((*flatten(out), tangents))
            return [t for t in (*traced[-1][0], *tangents) if isinstance(t, Tensor)]

        self._run = compiled(flat, [t for t in (*values, *moved, *target[0], *tangents) if isinstance(t, Tensor)])
        out, self._shape, found = traced[-1]
        self._out = [None if isinstance(t, Tensor) else t for t in out]
        self._has = [t is not None for t in found]

    def fits(self, values: list[Any], moved: list[Tensor | None], target: list[Any]) -> bool:
        """Whether it was made for such an input."""
        return _form(values, moved, target) == self.form

    def __call__(self, values: list[Any], moved: list[Tensor | None], target: list[Any], us: list[Tensor]) -> Apart:
        """Runs it."""
        with torch.no_grad():
            found = iter(self._run(*[t for t in (*values, *moved, *target, *us) if isinstance(t, Tensor)]))
        out = [next(found) if constant is None else constant for constant in self._out]
        return unflatten(out, self._shape), [next(found) if has else None for has in self._has]


def _form(*lists: Sequence[Any]) -> list[Any]:
    """What a compiled pass depends on: the form of each tensor, and whatever else there is."""
    return [(t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else t for tensors in lists for t in tensors]
