"""Parametrization over many axes: `make test` runs a few combinations that show every value, `make test-all` runs all.

    @spread(row=ROWS, k=[2, 3, 4, rarely(1)], optimizer=OPTIMIZERS)
    def test_threads_equal_simulate(row, k, optimizer): ...

The longest axis is walked through once, and the others take turns beside it:

    bp 2 sgd, gpipe 3 adam, 1f1b 4 sgd, ddg 2 adam, ...

All other combinations carry the mark `exhaustive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, cycle, islice, product
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive
needs_cuda = pytest.mark.cuda


def rarely(*values: Any, id: str | None = None) -> Any:
    """A value, or a tuple of them, for `make test-all` alone."""
    return pytest.param(*values, marks=exhaustive, id=id)


def spread(*, least: int = 0, **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test over all combinations of the axes' values; most are left to `make test-all`.

    Args:
        least: How many combinations `make test` runs, where that is more than the longest axis has values.
        axes: The values of each argument of the test.
    """
    table = {name: [_Value(value) for value in values] for name, values in axes.items()}
    quick = set(_turns([[i for i, v in enumerate(values) if v.often] for values in table.values()], least))
    cases = []
    for indices in product(*(range(len(values)) for values in table.values())):
        chosen = [values[i] for i, values in zip(indices, table.values())]
        marks = () if indices in quick else exhaustive
        cases.append(pytest.param(*(v.value for v in chosen), marks=marks, id="-".join(v.id for v in chosen)))
    return pytest.mark.parametrize(tuple(table), cases)


class _Value:
    """A value of an axis, given by itself or through `rarely`."""

    def __init__(self, given: Any) -> None:
        self.often = not isinstance(given, type(pytest.param()))
        (self.value,) = (given,) if self.often else given.values
        self.id = str(getattr(self.value, "__name__", self.value))


def _turns(axes: list[list[int]], least: int) -> Iterable[tuple[int, ...]]:
    """One combination for each item of the longest axis, of those items and pairs of the others that came up least."""
    longest = max(axes, key=len)
    seen: Counter[Any] = Counter()
    for item in islice(cycle(longest), max(least, len(longest))):
        walk = [[item] if axis is longest else axis for axis in axes]
        best = min(product(*walk), key=lambda chosen: [sum(seen[key] for key in keys) for keys in _keys(chosen)])
        for keys in _keys(best):
            seen.update(keys)
        yield best


def _keys(chosen: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """A combination's items, and its pairs of items, each with its axis."""
    placed = list(enumerate(chosen))
    return placed, list(combinations(placed, 2))
