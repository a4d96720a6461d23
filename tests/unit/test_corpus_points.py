"""Which schedules of a kernel are measured: cheap ones, children of the best, and a pool that covers all families."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.compiler import SPACES
from tilewright.learned.candidates import KernelCandidates
from tilewright.learned.features import FEATURES
from tilewright.search.database import decisions_text
from tilewright.target.target import AVX2
from tilewright.tir.func import Func
from tilewright.tir.parser import parse_func
from tilewright.training.points import KernelPoints, farthest_points
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Point

GEMM = """
@func
def gemm(x: f32[96, 64], w: f32[64, 80], y: out(f32[96, 80])):
    for i in range(96):
        for j in range(80):
            for k in range(64):
                with block("y"):
                    vi = spatial(96, i)
                    vj = spatial(80, j)
                    vk = reduce(64, k)
                    with init():
                        y[vi, vj] = f32(0.0)
                    y[vi, vj] = fma(x[vi, vk], w[vk, vj], y[vi, vj])
"""


def task(threads: int = 1) -> Task:
    func: Func = parse_func(GEMM)
    return Task("key", func, frozenset({"w"}), AVX2, SPACES, None, threads)


def names(points: Sequence[Point]) -> list[tuple[str, str]]:
    return [(family, decisions_text(decisions)) for family, decisions in points]


def test_the_farthest_points_are_taken_in_turn() -> None:
    rows = np.array([[0.0, 7.0], [1.0, 7.0], [10.0, 7.0], [9.0, 7.0], [5.0, 7.0]])
    pool = KernelCandidates(rows, np.ones(5))
    assert farthest_points(pool, 3, [0]) == [2, 4, 1]
    assert farthest_points(pool, 9, [0, 1]) == [2, 4, 3]
    assert farthest_points(KernelCandidates(rows[:0], np.ones(0)), 2, []) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_no_point_comes_twice_and_all_families_are_there(threads: int) -> None:
    points = KernelPoints(task(threads), {}, seed=0)
    found = points.first(30, farthest_points)
    costs = [points.cost(p) for p in found]
    for n, p in enumerate(found):
        points.tell(p, 1.0 + n)
    more = points.next(10)
    assert len(found) == 30 and len(more) == 10
    assert len(set(names([*found, *more]))) == 40
    assert {s.family for s in task().design_spaces()} <= {family for family, _ in found}
    # Half of the first are the cheapest there are, in order.
    cheapest = sorted(min(s.ranked()[1]) for s in task(threads).design_spaces() if s.knobs)[0]
    assert costs[0] == pytest.approx(cheapest) and costs[:15] == sorted(costs[:15])
    assert all("grain" in d for _, d in found) == (threads > 1)


def test_children_are_of_the_best() -> None:
    points = KernelPoints(task(), {}, seed=0)
    found = [p for p in points.first(30, farthest_points) if p[1]]
    stream = [p for p in found if p[0] == "stream"]
    assert stream and len(stream) < len(found)
    for p in found:  # the family that loses by cost wins
        points.tell(p, 0.1 if p in stream else 100.0)
    assert {family for family, _ in points.next(4)} == {"stream"}


def test_what_is_known_is_not_proposed_again() -> None:
    known = dict.fromkeys(names(KernelPoints(task(), {}, seed=0).first(20, farthest_points)), 1.0)
    points = KernelPoints(task(), known, seed=0)
    found = names([*points.first(20, farthest_points), *points.next(10)])
    assert len(found) == 30 and not known.keys() & set(found)


def test_a_model_may_choose_from_the_pool() -> None:
    seen: list[KernelCandidates] = []

    def dearest(pool: KernelCandidates, count: int, taken: Sequence[int]) -> list[int]:
        seen.append(pool)
        left = [n for n in range(len(pool.costs)) if n not in taken]
        return sorted(left, key=lambda n: -pool.costs[n])[:count]

    points = KernelPoints(task(), {}, seed=0)
    found = points.first(10, dearest)
    pool = seen[0]
    assert pool.features.shape == (len(pool.costs), len(FEATURES))
    assert len(pool.costs) > 5 * len(found) / 2
    dear = sorted(pool.costs)[-5:]
    assert sorted(points.cost(p) for p in found[5:]) == pytest.approx(dear)
