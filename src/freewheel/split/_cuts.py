"""Where to cut a line of units: as asked for, or where it is best."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from freewheel._errors import unknown
from freewheel.split._balance import best_cuts, bounds
from freewheel.split._line import Line
from freewheel.split._tracer import MANUAL_SPLIT

UNBALANCED = 1.5  # the largest share of the cost, as a multiple of the mean, from which on a split is unbalanced


@dataclass(frozen=True)
class Cuts:
    """A line, cut into stages.

    Attributes:
        line: The line.
        spans: The first unit of each stage and the one after its last.
        costs: The cost of each unit.
        unit: What the costs count.
        excluded: The cuts that were not to be made.
    """

    line: Line
    spans: list[tuple[int, int]]
    costs: Sequence[float]
    unit: str
    excluded: Collection[int] = ()

    @property
    def stage_costs(self) -> list[float]:
        """The cost of each stage."""
        return [self._cost(span) for span in self.spans]

    @property
    def largest_share(self) -> float:
        """The share of the most expensive stage."""
        return max(self.stage_costs) / (sum(self.costs) or 1)

    @property
    def unbalanced(self) -> bool:
        """Whether the most expensive stage costs far more than the mean."""
        return self.largest_share > UNBALANCED / len(self.spans)

    def bottleneck(self) -> str:
        """The part of the most expensive stage that no cut divides, and why; empty if the stages are balanced."""
        if not self.unbalanced or self.unit == "units":
            return ""
        start, end = max(self.spans, key=self._cost)
        places = [start, *(cut for cut in range(start + 1, end) if cut not in self.excluded), end]
        first, after = max(pairwise(places), key=self._cost)
        largest = max(range(first, after), key=self.costs.__getitem__)
        if self.costs[largest] > UNBALANCED / len(self.spans) * sum(self.costs) or after - first == 1:
            name, part = self._name(largest), self.costs[largest] / sum(self.costs)
            reason = self.line.traced.whole.get(name)
            return f"'{name}' has {part:.0%} and is " + (f"kept whole: {reason}" if reason else "a single layer")
        reasons = [self.line.forbidden[cut] for cut in range(first + 1, after) if cut in self.line.forbidden]
        why = next(iter(reasons), "a stage would change its input in place")
        part = self._cost((first, after)) / sum(self.costs)
        return f"'{self._name(first)}' to '{self._name(after - 1)}' have {part:.0%} and are not cut apart: {why}"

    def _name(self, unit: int) -> str:
        return self.line.name(self.line.units[unit])

    def _cost(self, span: tuple[int, int]) -> float:
        return sum(self.costs[slice(*span)])


def balanced(line: Line, k: int, costs: Sequence[float], unit: str) -> Cuts:
    """The cuts whose most expensive stage is cheapest."""
    excluded = _excluded(line, k)
    messages = [sum(item.elements for item in message) for message in line.messages]
    cuts = best_cuts(costs, k, messages=messages, forbidden=excluded)
    return Cuts(line, bounds(cuts, len(line.units)), costs, unit, excluded)


def counted(line: Line, balance: Sequence[int]) -> Cuts:
    """The cuts that give each stage its number of units."""
    if sum(balance) != len(line.units):
        children = line.traced.sequential and len(list(line.model.children())) != len(line.units)
        whole = f" ({len(list(line.model.children()))} children)" if children else ""
        raise ValueError(
            f"balance={list(balance)} adds up to {sum(balance)}, but {type(line.model).__name__} has "
            f"{len(line.units)} units{whole}: make the two numbers equal"
        )
    cuts = list(accumulate(balance))[:-1]
    for cut in cuts:
        if cut in line.forbidden:
            name = line.name(line.units[cut])
            raise ValueError(f"balance={list(balance)}: no stage can begin at '{name}': {line.forbidden[cut]}")
    return _given(line, cuts)


def named(line: Line, at: Sequence[str]) -> Cuts:
    """The cuts before the first unit of each named submodule."""
    cuts = [0]
    for i, name in enumerate(at):
        cut = _first_unit(line, name)
        if cut == 0:
            raise ValueError(f"at: nothing comes before {name!r}, so no stage begins there: leave it out")
        if cut <= cuts[-1]:
            how = "begin at the same layer" if cut == cuts[-1] else "are out of execution order"
            raise ValueError(f"at: {at[i - 1]!r} and {name!r} {how}: name the stages in the order they run")
        if cut in line.forbidden:
            raise ValueError(f"at: no stage can begin at {name!r}: {line.forbidden[cut]}")
        cuts.append(cut)
    return _given(line, cuts[1:])


def enclosing(line: Line, name: str) -> str | None:
    """The unit that a submodule is inside of, if any."""
    return next((line.name(u) for u in line.units if name.startswith(f"{line.name(u)}.")), None)


def _given(line: Line, cuts: list[int]) -> Cuts:
    return Cuts(line, bounds(cuts, len(line.units)), [1] * len(line.units), "units")


def _excluded(line: Line, k: int) -> set[int]:
    """The cuts not to make."""
    better = line.avoided | set(line.forbidden)
    return set(better) if k <= len(line.units) - len(better) else set(line.forbidden)


def too_many(line: Line, k: int) -> ValueError:
    """The error that more stages are asked for than the units can form."""
    most = line.most_stages
    notes = "".join(f"; '{name}' counts as one layer: {why}" for name, why in list(line.traced.whole.items())[:3])
    if line.forbidden:
        cut, reason = min(line.forbidden.items())
        where = f"before '{line.name(line.units[cut])}': {reason}"
        notes += f"; {len(line.forbidden)} cuts are impossible, such as {where}"
    return ValueError(
        f"k={k}: {type(line.model).__name__} has {len(line.units)} layers, which form at most {most} "
        f"stages{notes}; give k <= {most}, {MANUAL_SPLIT}"
    )


def _first_unit(line: Line, name: str) -> int:
    for i, unit in enumerate(line.units):
        if any(path == name or path.startswith(f"{name}.") for path in line.paths(unit)):
            return i
    modules = [known for known, _ in line.model.named_modules(remove_duplicate=False) if known]
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=8, cutoff=0)
        raise unknown("submodule in at", name, near)
    inside = enclosing(line, name)
    if inside is not None:
        raise ValueError(f"at: {name!r} is inside {inside!r}, which is kept whole: name {inside!r}, {MANUAL_SPLIT}")
    raise ValueError(f"at: {name!r} is never called by the model, so no stage can begin there: leave it out")
