"""Reductions along rows: where what they reduce is computed."""

import numpy as np
import pytest
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, unary
from tilewright.schedule.find import find_block, loops_above
from tilewright.search.default import schedule_as
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import blocks, loops

ROWS = 6


def softmax(columns: int) -> Func:
    b = FuncBuilder("softmax")
    x = b.param("X", (ROWS, columns), DType.F32)
    top = b.reduce("M", (ROWS,), (columns,), lambda i, k: x[i, k], "max")
    e = b.compute("E", x.shape, lambda i, j: unary(UnaryOp.EXP_NONPOSITIVE, x[i, j] - top[i]))
    total = b.reduce("S", (ROWS,), (columns,), lambda i, k: e[i, k])
    return b.finish(b.compute("Y", x.shape, lambda i, j: e[i, j] / total[i]))


def scheduled(columns: int) -> Func:
    func = softmax(columns)
    done = schedule_as(func, AVX2, frozenset(), "reduce", {"accumulators": 2}).func
    x = np.random.default_rng(0).normal(size=(ROWS, columns)).astype(np.float32)
    (want,), (got,), (native,) = run_func(func, x), run_func(done, x), run_native(done, [x], AVX2)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(native, want, rtol=2e-6)
    return done


def test_what_takes_long_is_summed_where_it_is_computed() -> None:
    done = scheduled(64)
    made, added = (loops_above(done, find_block(done, name))[-2] for name in ("E", "S_rf"))
    assert made is added


@pytest.mark.parametrize("columns", [72, 61, 5])
def test_a_row_with_a_rest_is_summed_afterwards(columns: int) -> None:
    done = scheduled(columns)
    innermost = [n for n in loops(done.body) if not any(m is not n for m in loops(n.body))]
    assert innermost and all(len(list(blocks(n))) == 1 for n in innermost)
