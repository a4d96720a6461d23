"""Spaces whose points a model ranks (`learned/space.py`), and what the default schedule makes of them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.schedule_programs import matmul
from tilewright.families.space import Space
from tilewright.ir.dtype import DType
from tilewright.learned.features import ABSENT, FEATURES, SpaceFeatures, kernel_features
from tilewright.learned.space import ASKED, LearnedSpace
from tilewright.search.default import choose_schedule, spaces
from tilewright.support.arrays import FloatArray
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Func

AVX2 = resolve_target("x86-64-v3")
ROWS = FEATURES.index("knob_rows")


def gemm_space(func: Func) -> Space:
    return next(s for s in spaces(func, AVX2) if s.family == "gemm")


def prefers_few_rows(features: FloatArray) -> FloatArray:
    """A model that has learned that tiles of few rows are a little quicker than they say."""
    rows = features[:, ROWS]
    return np.where(rows == ABSENT, 2.0, 0.3 * rows)


def refined(func: Func) -> LearnedSpace:
    return LearnedSpace(gemm_space(func), kernel_features(func, AVX2, frozenset()), prefers_few_rows)


def test_the_model_orders_the_points_that_may_be_the_best() -> None:
    func = matmul(DType.F32, 64, 96, 64)
    stated, learned = gemm_space(func), refined(func)
    points, costs = learned.ranked()
    assert len(points) == len(stated.ranked()[0])
    assert (np.diff(costs) >= 0).all()
    rows = [k.name for k in stated.knobs].index("rows")
    assert points[0, rows] < stated.ranked()[0][0, rows]
    np.testing.assert_allclose(learned.cost(points[:5]), costs[:5])


def test_points_that_the_model_was_not_asked_about_come_last() -> None:
    func = matmul(DType.F32, 64, 96, 64)
    asked: list[int] = []

    def model(features: FloatArray) -> FloatArray:
        asked.append(len(features))
        return np.ones(len(features))

    space = LearnedSpace(gemm_space(func), kernel_features(func, AVX2, frozenset()), model)
    points, costs = space.ranked()
    assert sum(asked) <= ASKED < len(points)
    assert costs[asked[0] :].min() >= costs[: asked[0]].max()


def test_a_model_that_knows_nothing_changes_nothing() -> None:
    func = matmul(DType.F32, 13, 17, 7)
    stated = gemm_space(func)
    same = LearnedSpace(stated, {}, lambda f: np.zeros(len(f)))
    np.testing.assert_array_equal(same.ranked()[0], stated.ranked()[0])


def test_the_default_schedule_is_ranked_by_what_refines() -> None:
    func = matmul(DType.F32, 64, 96, 64)

    def refine(space: Space, func: Func, target: Target, constants: frozenset[str]) -> Space:
        return LearnedSpace(space, kernel_features(func, target, constants), prefers_few_rows)

    plain, learned = choose_schedule(func, AVX2), choose_schedule(func, AVX2, frozenset(), refine)
    assert learned.decisions["rows"] < plain.decisions["rows"]


def test_features_tell_knobs_costs_threads_and_what_is_absent() -> None:
    func = matmul(DType.F32, 64, 96, 32)
    space = gemm_space(func)
    points, costs = space.ranked()
    kernel = kernel_features(func, AVX2, frozenset())
    rows = SpaceFeatures(kernel, space).rows(points[:50], costs[:50])
    column = {name: rows[:, n] for n, name in enumerate(FEATURES)}
    knobs = [k.name for k in space.knobs]
    np.testing.assert_allclose(2 ** column["knob_rows"] - 2, points[:50, knobs.index("rows")])
    np.testing.assert_allclose(2 ** column["cost"], costs[:50])
    assert column["over_cheapest"][0] == 0.0
    assert (column["knob_grain"] == ABSENT).all() and (column["is_gemm"] == 1).all()
    assert column["reduce_product"][0] == 5 and column["space_product"][0] == pytest.approx(np.log2(64 * 96))
    two = kernel_features(func, replace(AVX2, machine=AVX2.machine.for_threads(2)), frozenset())
    assert (kernel["threads"], two["threads"]) == (1, 2)
    assert np.isfinite(rows).all()
