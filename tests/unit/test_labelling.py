"""The cheapest labels of many variables: against all choices, one by one; moves against their starts."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.search.cut import Table, Two, cheapest
from tilewright.search.labelling import assign, by_moves, total, try_exact
from tilewright.search.layout_terms import MUST

US = 1e-6  # seconds
NEAR = 1e-11  # seconds: of a hundred terms that are rounded
Find = Callable[..., list[int]]


@dataclass(frozen=True)
class Problem:
    alone: list[list[float]]
    pairs: dict[tuple[int, int], list[list[float]]]

    def total(self, x: Sequence[int]) -> float:
        return total(x, self.alone, self.pairs)

    def every(self) -> Iterator[tuple[int, ...]]:
        return product(*(range(len(costs)) for costs in self.alone))

    def least(self) -> float:
        return min(map(self.total, self.every()))


def random_edges(r: Random, count: int, share: float) -> list[tuple[int, int]]:
    return [(u, v) for u in range(count) for v in range(u + 1, count) if r.random() < share]


def any_costs(r: Random, *, forbidden: float = 0.0, largest: int = 20) -> Problem:
    """Variables with one to four labels, few costs so that many are equal, pairs named either way round."""
    count = r.randint(1, 6)
    labels = [r.randint(1, 4) for _ in range(count)]

    def cost() -> float:
        return inf if r.random() < forbidden else r.randint(0, largest) * US

    edges = [e if r.random() < 0.5 else e[::-1] for e in random_edges(r, count, 0.6)]
    edges += [(v, u) for u, v in edges if r.random() < 0.2]
    edges += [(v, v) for v in range(count) if r.random() < 0.1]
    return Problem(
        [[cost() for _ in range(n)] for n in labels],
        {(u, v): [[cost() for _ in range(labels[v])] for _ in range(labels[u])] for u, v in edges},
    )


def metric(r: Random, edges: Sequence[tuple[int, int]], count: int, labels: int) -> Problem:
    """What it costs to be apart is a distance of points of a plane, times a weight of each pair."""
    at = [(r.random(), r.random()) for _ in range(labels)]
    apart = [[abs(a - c) + abs(b - d) for c, d in at] for a, b in at]
    return Problem(
        [[r.random() * US for _ in range(labels)] for _ in range(count)],
        {e: [[d * w * US for d in row] for row in apart] for e in edges for w in [r.random()]},
    )


def grid_edges(height: int, width: int) -> list[tuple[int, int]]:
    at = [[y * width + x for x in range(width)] for y in range(height)]
    across = [(row[x], row[x + 1]) for row in at for x in range(width - 1)]
    return across + [(at[y][x], at[y + 1][x]) for y in range(height - 1) for x in range(width)]


def test_a_total_is_what_variables_and_pairs_cost() -> None:
    assert (
        total([1, 2], [[1.0, 2.0], [3.0, 4.0, 5.0]], {(1, 0): [[0.0, 0.0], [0.0, 0.0], [0.0, 7.0]]}) == 14.0
    )


# --------------------------------------------------------------------------------------------------------- elimination


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_no_choice_is_cheaper(forbidden: float, seed: int) -> None:
    p = any_costs(Random(seed), forbidden=forbidden)
    found = try_exact(p.alone, p.pairs)
    assert found is not None and found == assign(p.alone, p.pairs)
    least = p.least()
    assert p.total(found) == least or p.total(found) == pytest.approx(least, abs=NEAR)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_of_equally_cheap_choices_the_one_nearest_to_the_start_is_taken(seed: int) -> None:
    r = Random(seed)
    p = any_costs(r, largest=2)
    start = [r.randrange(len(costs)) for costs in p.alone]

    def changed(x: Sequence[int]) -> int:
        return sum(a != b for a, b in zip(x, start, strict=True))

    found, least = assign(p.alone, p.pairs, start), p.least() + NEAR
    assert p.total(found) <= least
    assert changed(found) == min(changed(x) for x in p.every() if p.total(x) <= least)


def test_large_trees_are_exact_by_tables_of_two_variables() -> None:
    r = Random(5)
    count, labels = 300, 5
    p = metric(r, [(r.randrange(v), v) for v in range(1, count)], count, labels)
    best = [list(costs) for costs in p.alone]  # of each variable, with all that hangs on it
    for parent, v in sorted(p.pairs, key=lambda e: -e[1]):
        for x, row in enumerate(p.pairs[parent, v]):
            best[parent][x] += min(a + b for a, b in zip(row, best[v], strict=True))
    found = try_exact(p.alone, p.pairs, None, labels**2)
    assert found is not None and p.total(found) == pytest.approx(min(best[0]), rel=1e-6)


def test_larger_tables_than_wanted_are_not_made() -> None:
    p = metric(Random(6), grid_edges(2, 100), 200, 5)
    assert try_exact(p.alone, p.pairs, None, 5**3) == try_exact(p.alone, p.pairs)
    assert try_exact(p.alone, p.pairs, None, 5**3 - 1) is None


def test_variables_with_one_label_connect_nothing() -> None:
    """A hub that a hundred others meet is no table of all of them."""
    r = Random(7)
    hub: list[float] = [inf, 0.0, inf]
    p = metric(r, [(0, v) for v in range(1, 100)] + [(v, v + 1) for v in range(1, 99)], 100, 3)
    p.alone[0][:] = hub
    found = try_exact(p.alone, p.pairs, None, 9)
    assert found is not None and found[0] == 1


# ------------------------------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("find", [assign, by_moves])
@pytest.mark.parametrize("never", [inf, MUST])
def test_what_cannot_be_is_not_taken_where_it_can_be_avoided(find: Find, never: float) -> None:
    """Variables that must agree, and some that must not have a label, which they would prefer."""
    for seed in range(40):
        r = Random(seed)
        edges = random_edges(r, 6, 0.5)
        p = metric(r, edges, 6, 3)
        allowed = r.randrange(3)
        for e in edges:
            if r.random() < 0.5:
                p.pairs[e][:] = [[0.0 if x == y else never for y in range(3)] for x in range(3)]
        for v in range(6):
            if r.random() < 0.4:
                p.alone[v][:] = [p.alone[v][x] if x == allowed else never for x in range(3)]
        assert p.total(find(p.alone, p.pairs)) < MUST


def test_where_a_variable_can_have_no_label_the_others_still_do_well() -> None:
    alone = [[inf, inf], [2 * US, 1 * US], [3 * US, 0.0]]
    assert assign(alone, {(0, 1): [[0.0, 9 * US], [0.0, 0.0]]}) == [0, 0, 1]
    assert assign(alone, {(0, 1): [[0.0, 9 * US], [0.0, 0.0]]}, [1, 0, 0]) == [1, 1, 1]


def test_costs_too_large_for_the_unit_are_compared_in_a_larger_one() -> None:
    alone = [[1e15, 0.0, inf], [0.0, 2e15, 5e15]]
    pairs = {(0, 1): [[0.0, 0.0, 0.0], [3e15, 3e15, 0.0], [0.0, 0.0, 0.0]]}
    assert assign(alone, pairs) == [0, 0]


@pytest.mark.parametrize(
    ("alone", "pairs", "start", "says"),
    [
        ([[0.0, 1.0], []], {}, None, "variable 1 has 0 labels"),
        ([[0.0, 1.0]], {}, [2], "starts with label 2"),
        ([[0.0, 1.0], [0.0]], {(0, 1): [[0.0, 1.0]]}, None, "variables 0 and 1"),
        ([[0.0, float("nan")]], {}, None, "no number"),
        ([[0.0], [0.0]], {(0, 1): [[-inf]]}, None, "minus infinity"),
    ],
)
def test_costs_that_make_no_sense_are_refused(
    alone: list[list[float]],
    pairs: dict[tuple[int, int], list[list[float]]],
    start: list[int] | None,
    says: str,
) -> None:
    with pytest.raises(ValueError, match=says):
        assign(alone, pairs, start)


# --------------------------------------------------------------------------------------------------------------- moves


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_moves_never_make_a_start_worse(seed: int) -> None:
    r = Random(seed)
    p = any_costs(r, forbidden=0.1)
    start = [r.randrange(len(costs)) for costs in p.alone]
    assert p.total(by_moves(p.alone, p.pairs, start)) <= p.total(start) + NEAR


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_no_set_of_variables_gains_by_one_label_where_pairs_cost_distances(seed: int) -> None:
    """So the result is within twice the ratio of the largest to the least distance (Boykov, Veksler, Zabih 2001)."""
    r = Random(seed)
    p = metric(r, random_edges(r, 6, 0.6), 6, 3)
    found = by_moves(p.alone, p.pairs)
    for label, taken in product(range(3), product((False, True), repeat=6)):
        moved = [label if t else x for t, x in zip(taken, found, strict=True)]
        assert p.total(found) <= p.total(moved) + NEAR
    for rows in list(p.pairs.values())[:1]:  # the distances of all pairs are in proportion
        apart = [d for row in rows for d in row if d > 0]
        assert p.total(found) <= 2 * max(apart) / min(apart) * p.least() + NEAR


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_two_labels_whose_pairs_prefer_to_agree_are_those_of_a_cut(seed: int) -> None:
    """Which takes the most 1s of equally cheap choices."""
    r = Random(seed)
    count = r.randint(1, 8)
    alone: list[Two] = [(r.randint(0, 9) * US, r.randint(0, 9) * US) for _ in range(count)]
    pairs: dict[tuple[int, int], Table] = {}
    for e in random_edges(r, count, 0.5):
        a, d, more = (r.randint(0, 9) for _ in range(3))
        b = r.randint(0, a + d)
        pairs[e] = (a * US, b * US), ((a + d - b + more) * US, d * US)
    cut = cheapest(alone, pairs)
    assert assign(alone, pairs, [1] * count) == cut
    assert total(by_moves(alone, pairs), alone, pairs) == pytest.approx(total(cut, alone, pairs), abs=NEAR)


@pytest.mark.parametrize("is_metric", [True, False])
def test_two_hundred_variables_with_four_labels_take_well_under_a_second(is_metric: bool) -> None:
    """A grid, whose tables would be too large."""
    r = Random(8)
    p = metric(r, grid_edges(10, 20), 200, 4)
    if not is_metric:
        for rows in p.pairs.values():
            rows[:] = [[r.random() * US for _ in range(4)] for _ in range(4)]
    assert try_exact(p.alone, p.pairs) is None
    began = time.process_time()
    found = assign(p.alone, p.pairs)
    assert time.process_time() - began < 2.0  # 0.3 s on an idle machine
    assert found == assign(p.alone, p.pairs)
    assert p.total(found) <= p.total(by_moves(p.alone, p.pairs)) + NEAR
    again = assign(p.alone, p.pairs, found)
    assert p.total(again) <= p.total(found) + NEAR


def test_elimination_improves_what_cuts_cannot() -> None:
    """Labels of neighbours that go together have other numbers, so no label is good for many variables."""
    r = Random(9)
    p = metric(r, grid_edges(10, 10), 100, 4)
    for rows in p.pairs.values():
        goes_with = r.sample(range(4), 4)
        rows[:] = [[0.0 if goes_with[x] == y else US for y in range(4)] for x in range(4)]
    cuts, both = by_moves(p.alone, p.pairs), assign(p.alone, p.pairs)
    assert p.total(both) < 0.9 * p.total(cuts)
