"""Where to cut a line of costs so that the dearest part is as cheap as it can be."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import accumulate, pairwise

INFINITY = float("inf")
_Way = tuple[float, float, tuple[int, ...]]  # squares, messages, cuts counted downwards


def best_cuts(
    costs: Sequence[float],
    k: int,
    *,
    messages: Sequence[float] | None = None,
    forbidden: Container[int] = (),
) -> list[int]:
    """The k - 1 cuts into contiguous non-empty parts whose largest cost is the least possible.

    A cut at p lies between the items p - 1 and p. The answer is exact. Among cuts with the same largest
    cost, the least sum of squared costs wins, then the least sum of message sizes, then the cuts that
    are last in lexicographic order, so that what costs nothing stays with what comes before it.

    Args:
        costs: What each item costs, none of them negative.
        k: The number of parts.
        messages: What a cut at p sends on, for p from 0 to len(costs) - 1 (the first is not used).
        forbidden: The places where no cut may lie.

    Example:
        >>> best_cuts([1, 2, 3, 4, 5], 2)
        [3]
        >>> best_cuts([1, 2, 3, 4, 5], 2, forbidden={3})
        [4]
    """
    places = [0, *(p for p in range(1, len(costs)) if p not in forbidden), len(costs)]
    if not 1 <= k < len(places):
        raise ValueError(f"k={k}: there are {len(places) - 1} blocks that can be kept apart")
    before = list(accumulate(costs, initial=0))
    sums = [before[p] for p in places]
    sizes = [0 if messages is None or p in (0, len(costs)) else messages[p] for p in places]
    return [places[i] for i in _gentlest(sums, sizes, k, _bottleneck(sums, k))]


def bounds(cuts: Sequence[int], n: int) -> list[tuple[int, int]]:
    """The first item and the one after the last of each part.

    Example:
        >>> bounds([2, 5], 6)
        [(0, 2), (2, 5), (5, 6)]
    """
    return list(pairwise([0, *cuts, n]))


def _bottleneck(sums: Sequence[float], k: int) -> float:
    """The least possible largest cost of k parts of the blocks with these running sums."""
    n = len(sums) - 1
    best = [0.0] + [INFINITY] * n  # best[j]: the first j blocks in as many parts as rounds so far
    for _ in range(k):
        row = [INFINITY] * (n + 1)
        for j in range(1, n + 1):
            for i in range(j - 1, -1, -1):
                cost = sums[j] - sums[i]
                if cost >= row[j]:
                    break  # an earlier start only makes the last part dearer
                row[j] = min(row[j], max(best[i], cost))
        best = row
    return best[n]


def _gentlest(sums: Sequence[float], sizes: Sequence[float], k: int, limit: float) -> list[int]:
    """Of all ways to keep every part within the limit, the one with the least (squares, messages, -cuts).

    The rows run from the end to the start, so that the cuts of equal ways compare from the first one on.
    """
    n = len(sums) - 1
    worst: _Way = (INFINITY, INFINITY, ())
    best: list[_Way] = [worst] * n + [(0.0, 0.0, ())]
    for _ in range(k):
        row: list[_Way] = [worst] * (n + 1)
        for i in range(n - 1, -1, -1):
            for j in range(i + 1, n + 1):
                cost = sums[j] - sums[i]
                if cost > limit:
                    break
                squares, sent, cuts = best[j]
                if squares < INFINITY:
                    row[i] = min(row[i], (squares + cost * cost, sent + sizes[j], (-j, *cuts)))
        best = row
    return [-cut for cut in best[0][2][:-1]]
