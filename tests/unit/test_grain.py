"""The parallel grain as a knob: which parts a kernel has, and that it computes the same."""

import numpy as np
import pytest

import tilewright as tw
from tests.tile_space import gemm
from tilewright.schedule.find import top_level
from tilewright.search.default import schedule_as, spaces
from tilewright.search.grain import GRAIN, ONE_PART, GrainSpace
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2
from tilewright.tir.func import Func
from tilewright.tir.stmt import For, LoopKind


def parts(func: Func) -> int:
    loops = [n for n in top_level(func) if isinstance(n, For) and n.kind is LoopKind.PARALLEL]
    return max((n.extent for n in loops), default=1)


def best(func: Func) -> tuple[str, dict[str, int]]:
    space = next(s for s in spaces(func, AVX2) if s.family == "gemm")
    points, _ = space.ranked()
    return space.family, space.decisions(points[0])


def test_a_grain_divides_the_parts_and_computes_the_same() -> None:
    func = gemm(96, 64, 32)
    family, decisions = best(func)
    own = schedule_as(func, AVX2, frozenset(), family, decisions)
    coarse = schedule_as(func, AVX2, frozenset(), family, {**decisions, GRAIN: 2})
    alone = schedule_as(func, AVX2, frozenset(), family, {**decisions, GRAIN: ONE_PART})
    assert parts(coarse.func) * 2 == parts(own.func) and parts(alone.func) == 1
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((96, 32), np.float32), rng.standard_normal((32, 64), np.float32)
    expected = tw.build(own, AVX2, threads=1)(x, w)
    for s in (coarse, alone):
        np.testing.assert_array_equal(tw.build(s, AVX2, threads=2)(x, w), expected)


def test_a_grain_that_divides_nothing_is_refused() -> None:
    func = gemm(96, 64, 32)
    family, decisions = best(func)
    with pytest.raises(ScheduleError, match="has a grain of 7919"):
        schedule_as(func, AVX2, frozenset(), family, {**decisions, GRAIN: 7919})


def test_grains_are_offered_after_the_own_of_a_family() -> None:
    inner = next(s for s in spaces(gemm(96, 64, 32), AVX2) if s.family == "gemm")
    space = GrainSpace(inner)
    assert len(space.points()) == 5 * len(inner.points())
    points, costs = space.ranked()
    assert space.decisions(points[0])[GRAIN] == 0 and (np.diff(costs) >= 0).all()
