"""Exact balancing: where to cut a line of costs so that the most expensive stage is as cheap as possible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

INFINITY = float("inf")
_Plan = tuple[float, float, tuple[int, ...]]  # sum of squares, sum of message sizes, negated cuts


def best_cuts(
    costs: Sequence[float],
    k: int,
    *,
    messages: Sequence[float] | None = None,
    forbidden: Container[int] = (),
) -> list[int]:
    """Find the k - 1 cuts into contiguous, non-empty stages that minimize the largest cost of a stage.

    A cut at p lies between the items p - 1 and p. The solution is exact. Ties are broken by the smallest sum of
    squared costs, then by the smallest sum of message sizes, then by the cuts that are last in lexicographic
    order, so that items without cost stay with what precedes them.

    Args:
        costs: The cost of each item, none negative.
        k: The number of stages.
        messages: The size of what crosses a cut at p, for p from 0 to len(costs) - 1 (the first is not used).
        forbidden: The positions where no cut is allowed.

    Example:
        >>> best_cuts([1, 2, 3, 4, 5], 2)
        [3]
        >>> best_cuts([1, 2, 3, 4, 5], 2, forbidden={3})
        [4]
    """
    places = [0, *(p for p in range(1, len(costs)) if p not in forbidden), len(costs)]
    if not 1 <= k < len(places):
        raise ValueError(f"k={k}: there are {len(places) - 1} blocks that can be separated")
    before = list(accumulate(costs, initial=0))
    sums = [before[p] for p in places]
    sizes = [0 if messages is None or p in (0, len(costs)) else messages[p] for p in places]
    return [places[i] for i in _break_ties(sums, sizes, k, _bottleneck(sums, k))]


def bounds(cuts: Sequence[int], n: int) -> list[tuple[int, int]]:
    """The first item of each stage and the one after its last.

    Example:
        >>> bounds([2, 5], 6)
        [(0, 2), (2, 5), (5, 6)]
    """
    return list(pairwise([0, *cuts, n]))


def _bottleneck(sums: Sequence[float], k: int) -> float:
    """The smallest possible largest cost of k stages, given the running sums of the blocks."""
    n = len(sums) - 1
    best = [0.0] + [INFINITY] * n  # best[j]: the first j blocks in `done` stages; infinite for j < done
    for done in range(k):
        row = [INFINITY] * (n + 1)
        for j in range(done + 1, n + 1):
            # As i grows, best[i] rises and the cost of the last stage, blocks i to j - 1, falls:
            # the smallest maximum is where they meet.
            i = bisect_left(range(j), True, lo=done, key=lambda i: best[i] >= sums[j] - sums[i])
            row[j] = min(max(best[i], sums[j] - sums[i]) for i in (i - 1, i) if done <= i < j)
        best = row
    return best[n]


def _break_ties(sums: Sequence[float], sizes: Sequence[float], k: int, limit: float) -> list[int]:
    """Of all cuts that keep every stage within the limit, the ones with the least (squares, messages, -cuts).

    The rows run from the last stage to the first, so that equal plans compare from their first cut on. Only
    places that stages within the limit can reach from both ends are tried.
    """
    n = len(sums) - 1
    furthest = [0]  # furthest[s]: where s stages from the start can end
    for _ in range(k - 1):
        start = furthest[-1]
        furthest.append(bisect_right(range(n + 1), limit, lo=start, key=lambda j: sums[j] - sums[start]) - 1)
    worst: _Plan = (INFINITY, INFINITY, ())
    best: dict[int, _Plan] = {n: (0.0, 0.0, ())}  # plans from block i to the end
    for stages_before in range(k - 1, -1, -1):
        row: dict[int, _Plan] = {}
        for i in range(min(furthest[stages_before], max(best) - 1), stages_before - 1, -1):
            found = worst
            for j in range(max(i + 1, min(best)), max(best) + 1):
                cost = sums[j] - sums[i]
                if cost > limit or cost * cost > found[0]:
                    break  # a longer stage only costs more
                if j in best and best[j][0] + cost * cost <= found[0]:
                    squares, sent, cuts = best[j]
                    found = min(found, (squares + cost * cost, sent + sizes[j], (-j, *cuts)))
            if found is not worst:
                row[i] = found
        best = row
    return [-cut for cut in best[0][2][:-1]]
