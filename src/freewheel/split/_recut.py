"""Cut a model again, by what its stages have been measured to take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import nn

from freewheel.split._arguments import check_example
from freewheel.split._cuts import Cuts, balanced
from freewheel.split._lines import lines_of, with_units


def scaled(costs: Sequence[float], balance: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """The costs of units, of which those of each stage add up to its seconds.

    Args:
        costs: The cost of each unit.
        balance: The number of units of each stage.
        seconds: What each stage takes.

    Example:
        >>> scaled([1, 1, 3, 1], (2, 2), [6.0, 2.0])
        [3.0, 3.0, 1.5, 0.5]
    """
    out: list[float] = []
    for (start, end), took in zip(pairwise(accumulate(balance, initial=0)), seconds, strict=True):
        part = costs[start:end]
        whole = sum(part)
        out += [took * cost / whole for cost in part] if whole else [took / len(part)] * len(part)
    return out


def recut(model: nn.Module, balance: Sequence[int], costs: Sequence[float], example: Any) -> Cuts:
    """The best cuts of the line of units that has been cut like this, if its units have these costs."""
    output = None if example is None else check_example(model, example)
    line = with_units(lines_of(model, example, output, children=True), len(costs))
    return balanced(line, len(balance), costs, "s")
