"""Sizes that know where they come from: numbers with their node in the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx


class RecordedInt(int):
    """A size of a recorded tensor, or what is computed from sizes by `+ - * // % **`; in all else a plain number.

    So a shape that forward computes is computed again for batches of other sizes, and a decision such as
    ``if t > limit`` is taken once.

    Example:
        >>> graph = fx.Graph()
        >>> t = RecordedInt.of(6, graph.placeholder("t"))
        >>> half = (t - 2) // 2
        >>> half, half > 1, half.node.target is operator.floordiv
        (2, True, True)
    """

    node: fx.Node

    @classmethod
    def of(cls, value: int, node: fx.Node) -> RecordedInt:
        """The number with its node."""
        made = cls(value)
        made.node = node
        return made

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def __deepcopy__(self, memo: Any) -> RecordedInt:
        return self


def _recorded(function: Callable[..., Any], *, swapped: bool) -> Callable[..., Any]:
    def compute(self: RecordedInt, other: Any) -> Any:
        if type(other) not in (int, RecordedInt):
            return getattr(int, name)(int(self), other)
        ours, theirs = self.node, getattr(other, "node", other)
        operands, nodes = (
            ((int(other), int(self)), (theirs, ours)) if swapped else ((int(self), int(other)), (ours, theirs))
        )
        value = function(*operands)
        return RecordedInt.of(value, self.node.graph.call_function(function, nodes)) if type(value) is int else value

    name = f"__{'r' if swapped else ''}{function.__name__}__"
    return compute


SIZE_FUNCTIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow)
for _function in SIZE_FUNCTIONS:
    setattr(RecordedInt, f"__{_function.__name__}__", _recorded(_function, swapped=False))
    setattr(RecordedInt, f"__r{_function.__name__}__", _recorded(_function, swapped=True))
