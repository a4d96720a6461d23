"""What is inlined before a Func is scheduled: the factors of a product may be parts of one buffer."""

import numpy as np
import pytest

from tilewright.families.prepare import prepared
from tilewright.ir.dtype import DType
from tilewright.search.default import schedule_func, spaces
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_func

F32 = DType.F32


def scores(parts: int, rows: int = 12, width: int = 8) -> Func:
    """Queries and keys as parts of one buffer (or of two): Q·Kᵀ."""
    b = FuncBuilder("scores")
    x = b.param("X", (2, rows, width), F32)
    y = b.param("Y", (2, rows, width), F32) if parts == 2 else x
    q = b.compute("Q", (rows, width), lambda i, d: x[0, i, d])
    k = b.compute("K", (width, rows), lambda d, j: y[1, j, d])
    s = b.reduce("S", (rows, rows), (width,), lambda i, j, d: (q[i, d], k[d, j]), "sum")
    return b.finish(b.compute("T", (rows, rows), lambda i, j: s[i, j] * 2))


def names(func: Func) -> list[str]:
    return [b.name for b in blocks(func.body)]


def test_factors_from_two_buffers_are_both_inlined() -> None:
    assert names(prepared(scores(2)).func) == ["S", "T"]


def test_of_two_factors_from_one_buffer_one_stays() -> None:
    assert names(prepared(scores(1)).func) == ["K", "S", "T"]


@pytest.mark.parametrize("pack", [0, 1])
def test_a_product_of_parts_of_one_buffer_is_a_contraction(pack: int) -> None:
    func = scores(1)
    space = spaces(func, AVX2)[0]
    assert space.family == "gemm"
    points = space.ranked()[0]
    decisions = next(d for p in points if (d := space.decisions(p))["pack_b"] == pack)
    s = space.build(decisions)
    # What is packed is read in place: there is one copy, not two.
    copied = {b.name for b in s.module.funcs[0].locals if b.name == "K" or b.name.endswith("_reindex")}
    assert copied == ({"S_K_reindex"} if pack else {"K"})
    x = np.random.default_rng(0).integers(-3, 4, (2, 12, 8)).astype(np.float32)
    verify_func(s.module.funcs[0])
    np.testing.assert_array_equal(run_func(s.module.funcs[0], x)[0], run_func(func, x)[0])


def test_the_default_schedule_keeps_the_meaning() -> None:
    func = scores(1, 17, 9)
    x = np.random.default_rng(1).integers(-3, 4, (2, 17, 9)).astype(np.float32)
    np.testing.assert_array_equal(run_func(schedule_func(func, AVX2).func, x)[0], run_func(func, x)[0])
