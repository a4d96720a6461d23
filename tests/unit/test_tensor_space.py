"""The design space of mappings to tensor intrinsics."""

import numpy as np
import pytest
from native import BEST, HAS_AVX2, run_native
from tensor_programs import conv, einsum, quantized

from tilewright.families.tensor.space import TensorSpace, tensor_space
from tilewright.ir.dtype import DType
from tilewright.search.default import make_request
from tilewright.support.errors import ScheduleError
from tilewright.target.target import AVX2, BASELINE
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func


def space_of(func: Func) -> TensorSpace:
    found = tensor_space(make_request(func, AVX2, frozenset()))
    assert found is not None
    return found


def feeds(func: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    given = [p for p in func.params if p not in func.outputs]
    return [
        (rng.standard_normal(p.shape) if p.dtype.is_float else rng.integers(0, 100, p.shape)).astype(
            p.dtype.numpy
        )
        for p in given
    ]


@pytest.mark.parametrize(
    "func",
    [
        einsum("mk,kn->mn", {"m": 6, "k": 3, "n": 16}),
        conv((4, 5), (2, 3), channels=(2, 5), pad=1),
        quantized(3, 13, 5, DType.U8, DType.I8, zero_points=True),
    ],
    ids=["product", "convolution", "bytes"],
)
def test_the_cheapest_points_are_programs_that_mean_the_same(func: Func) -> None:
    space = space_of(func)
    points, costs = space.ranked()
    assert (np.diff(costs) >= 0).all() and len(points) == len(space.points())
    given = feeds(func)
    (want,) = run_func(func, *given)
    for n, point in enumerate(points[:2]):
        s = space.build(space.decisions(point))
        verify_func(s.func)
        np.testing.assert_allclose(run_func(s.func, *given)[0], want, rtol=1e-4, atol=1e-5)
        if n == 0 and HAS_AVX2:
            np.testing.assert_allclose(run_native(s.func, given, BEST)[0], want, rtol=1e-4, atol=1e-5)


def test_points_that_do_not_exist_cost_infinitely_much_and_are_refused() -> None:
    space = space_of(einsum("mk,kn->mn", {"m": 6, "k": 3, "n": 16}))
    point = space.points()[:1].copy()
    point[0, 2] = 99
    assert np.isinf(space.cost(point)).all()
    with pytest.raises(ScheduleError, match="has no groups"):
        space.build(space.decisions(point[0]))
    point[0, 0] = 9999
    assert np.isinf(space.cost(point)).all()
    with pytest.raises(ScheduleError, match="has no assignment"):
        space.build(space.decisions(point[0]))


def test_there_is_no_space_without_an_intrinsic_or_with_two_reductions() -> None:
    func = einsum("mk,kn->mn", {"m": 6, "k": 3, "n": 16})
    assert tensor_space(make_request(func, BASELINE, frozenset())) is None
    b = FuncBuilder("two")
    x = b.param("X", (3, 4), DType.F32)
    s = b.reduce("S", (3,), (4,), lambda i, k: x[i, k])
    t = b.reduce("T", (4,), (3,), lambda i, k: x[k, i])
    assert tensor_space(make_request(b.finish(s, t), AVX2, frozenset())) is None
