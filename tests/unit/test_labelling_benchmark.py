"""What labels are compared with: an integer programme, and problems that mean what they say."""

from itertools import product
from math import inf
from random import Random

import pytest

from benchmarks.labelling import compared, drawn, drawn_table, programme
from benchmarks.labelling_cases import COSTS, GRAPHS
from tilewright.search.labelling import total

pytest.importorskip("scipy")


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_programme_finds_the_cheapest_of_all_labels(graph: str) -> None:
    for n, costs in product(range(3), COSTS):
        r = Random(n)
        p = costs(r, GRAPHS[graph](r, 6), 6, 3)
        least = min(total(x, p.alone, p.pairs) for x in product(range(3), repeat=6))
        proof = programme(p, 10.0)
        assert proof.is_closed and least < inf
        assert proof.labels.cost == pytest.approx(least, rel=1e-6)


def test_outcomes_of_a_kind_are_a_row() -> None:
    problems = [p for p in drawn(9, (2, 3), 1) if p.kind.startswith("trees")]
    outcomes = [compared(p, 10.0) for p in problems]
    assert all(o.gap(o.assigned) < 1e-6 and not o.is_open for o in outcomes)
    rows = drawn_table(outcomes).splitlines()[2:]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| trees, any", "2", "100"],
        ["| trees, distances", "2", "100"],
        ["| trees, layouts", "2", "100"],
        ["| all", "6", "100"],
    ]
