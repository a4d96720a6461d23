"""The cheapest choice of one of two for many things: against all choices, one by one."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.search.cut import Table, Two, cheapest
from tilewright.search.labelling import total

costs = st.integers(0, 20).map(float)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Two], dict[tuple[int, int], Table]]:
    """A few things, in pairs that are on average no cheaper apart than together."""
    count = draw(st.integers(1, 6))
    alone = draw(st.lists(st.tuples(costs, costs), min_size=count, max_size=count))
    edges = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=8))
    pairs: dict[tuple[int, int], Table] = {}
    for u, v in sorted(edges):
        if u < v:
            a, d, more, less = draw(costs), draw(costs), draw(costs), draw(costs)
            b = min(a + d, less)
            pairs[u, v] = (a, b), (a + d - b + more, d)
    return alone, pairs


@given(problems())
@settings(max_examples=100, deadline=None)
def test_no_choice_is_cheaper(problem: tuple[list[Two], dict[tuple[int, int], Table]]) -> None:
    alone, pairs = ([(a * 1e-6, b * 1e-6) for a, b in problem[0]], _scaled(problem[1]))
    every = {x: total(x, alone, pairs) for x in product((0, 1), repeat=len(alone))}
    least = min(every.values())
    found = tuple(cheapest(alone, pairs))
    assert every[found] == pytest.approx(least, abs=1e-10)
    ones = [sum(x) for x, cost in every.items() if cost == pytest.approx(least, abs=1e-10)]
    assert sum(found) == max(ones)


def _scaled(pairs: dict[tuple[int, int], Table]) -> dict[tuple[int, int], Table]:
    return {k: ((a * 1e-6, b * 1e-6), (c * 1e-6, d * 1e-6)) for k, ((a, b), (c, d)) in pairs.items()}


def apart(cost: float) -> Table:
    return (0.0, cost), (cost, 0.0)


def test_what_a_thing_prefers_may_not_be_worth_being_apart() -> None:
    assert cheapest([(0.0, 5e-6), (3e-6, 0.0)], {(0, 1): apart(4e-6)}) == [0, 0]


def test_a_pair_that_is_cheaper_apart_counts_as_one_that_does_not_care() -> None:
    assert cheapest([(0.0, 1e-6), (1e-6, 0.0)], {(0, 1): ((4e-6, 0.0), (0.0, 4e-6))}) == [0, 1]


def test_nothing_to_choose() -> None:
    assert cheapest([], {}) == []
