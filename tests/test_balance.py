"""The cuts are the best there are: compared with trying all of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from freewheel.split._balance import best_cuts, bounds


def brute_force(costs, k, messages, forbidden):
    def key(cuts):
        sums = [sum(costs[a:b]) for a, b in bounds(cuts, len(costs))]
        return max(sums), sum(s * s for s in sums), sum(messages[c] for c in cuts), [-c for c in cuts]

    places = [p for p in range(1, len(costs)) if p not in forbidden]
    return min((list(cuts) for cuts in combinations(places, k - 1)), key=key, default=None)


@given(st.data())
def test_no_other_cuts_are_better(data):
    costs = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
    messages = data.draw(st.lists(st.integers(0, 3), min_size=len(costs), max_size=len(costs)))
    forbidden = data.draw(st.sets(st.integers(1, len(costs)), max_size=4))
    k = data.draw(st.integers(1, len(costs)))
    expected = brute_force(costs, k, messages, forbidden)
    if expected is None:
        with pytest.raises(ValueError, match=f"k={k}"):
            best_cuts(costs, k, messages=messages, forbidden=forbidden)
    else:
        assert best_cuts(costs, k, messages=messages, forbidden=forbidden) == expected


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(1, 4))
def test_with_seconds_the_largest_part_is_the_least(costs, k):
    k = min(k, len(costs))
    largest = max(sum(costs[a:b]) for a, b in bounds(best_cuts(costs, k), len(costs)))
    least = min(
        max(sum(costs[a:b]) for a, b in bounds(cuts, len(costs))) for cuts in combinations(range(1, len(costs)), k - 1)
    )
    assert largest == pytest.approx(least, abs=1e-12)


def test_a_long_line_is_cut_quickly():
    parts = bounds(best_cuts([1.0] * 1500, 30), 1500)
    assert {end - start for start, end in parts} == {50}


def test_free_items_stay_with_what_comes_before():
    assert best_cuts([3, 0, 0, 3], 2) == [3]


def test_a_smaller_message_decides_between_equal_cuts():
    assert best_cuts([3, 0, 0, 3], 2, messages=[0, 9, 1, 9]) == [2]
