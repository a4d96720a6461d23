"""Contractions of bytes in registers for matrices: every point keeps the meaning, in the interpreter and natively."""

import numpy as np
import pytest
from native import run_native
from test_dot_product_gemm import FUNCS, convolution, gemm, inputs_of
from test_tile_intrinsics import needs_amx

from tilewright.families.tiles.space import tiles_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import cast
from tilewright.search.default import choose_schedule, make_request, schedule_as
from tilewright.target.target import AMX, AVX512_VNNI
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, walk_stmts
from tilewright.tir.verify import verify_func

CONSTANTS = frozenset({"B", "W"})


def dense(m: int, n: int, k: int) -> Func:
    """With an epilogue that ends in bytes."""
    b = FuncBuilder("dense")
    x, y = b.param("A", (m, k), DType.U8), b.param("B", (k, n), DType.I8)
    bias = b.param("bias", (n,), DType.I16)
    total = b.reduce(
        "C",
        (m, n),
        (k,),
        lambda i, j, r: (cast(DType.I32, x[i, r]), cast(DType.I32, y[r, j])),
        "sum",
    )
    return b.finish(
        b.compute("Y", (m, n), lambda i, j: cast(DType.U8, total[i, j] + cast(DType.I32, bias[j])))
    )


SOME = {
    "whole tiles": gemm(32, 32, 64),
    "uneven rows and columns": gemm(49, 40, 128),
    "few": gemm(5, 7, 12),
    "signed": gemm(20, 16, 8, DType.I8, DType.I8),
    "epilogue": dense(34, 48, 16),
    "convolution": FUNCS["convolution"],
    "strided": convolution(16, 24, 9, 2),
}


@pytest.mark.parametrize("func", SOME.values(), ids=SOME)
def test_every_point_keeps_the_meaning(func: Func) -> None:
    space = tiles_space(make_request(func, AMX, CONSTANTS))
    assert space is not None
    points, costs = space.ranked()
    assert np.isfinite(costs).all()
    terms = space.terms(points)
    np.testing.assert_allclose(sum(terms.values()), costs, rtol=1e-9)
    arrays = inputs_of(func)
    (want,) = run_func(func, *arrays)
    for n in {0, len(points) // 2, len(points) - 1}:
        built = space.build(space.decisions(points[n])).func
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)


@needs_amx
@pytest.mark.parametrize("func", SOME.values(), ids=SOME)
def test_native_code(func: Func) -> None:
    space = tiles_space(make_request(func, AMX, CONSTANTS))
    assert space is not None
    points, _ = space.ranked()
    arrays = inputs_of(func)
    (want,) = run_func(func, *arrays)
    rng = np.random.default_rng(1)
    for n in {
        0,
        len(points) - 1,
        *(int(i) for i in rng.choice(len(points), min(4, len(points)), replace=False)),
    }:
        built = space.build(space.decisions(points[n])).func
        np.testing.assert_array_equal(run_native(built, arrays, AMX)[0], want)


def test_large_products_are_made_of_tiles_and_small_ones_of_vectors() -> None:
    large = choose_schedule(gemm(128, 256, 256), AMX, CONSTANTS)
    assert large.family == "tiles"
    emitted = {s.intrinsic for s in walk_stmts(large.draft.func.body) if isinstance(s, Emit)}
    assert emitted and all(name.startswith("amx.") for name in emitted)
    assert choose_schedule(gemm(1, 256, 256), AMX, CONSTANTS).family == "gemm"
    assert choose_schedule(gemm(128, 256, 256), AVX512_VNNI, CONSTANTS).family == "gemm"


def test_a_trace_is_valid_where_there_are_no_tiles() -> None:
    """Its family does not fit there, and says so: a program is compiled again."""
    func = gemm(64, 64, 64)
    chosen = choose_schedule(func, AMX, CONSTANTS)
    assert chosen.family == "tiles"
    assert schedule_as(func, AMX, CONSTANTS, "tiles", chosen.decisions)
    assert tiles_space(make_request(func, AVX512_VNNI, CONSTANTS)) is None


@pytest.mark.parametrize(
    "func",
    [gemm(32, 32, 6, DType.I16, DType.I16), gemm(32, 32, 5), gemm(32, 32, 64, DType.F32, DType.F32)],
    ids=["short", "odd", "floats"],
)
def test_what_does_not_fit(func: Func) -> None:
    assert tiles_space(make_request(func, AMX, CONSTANTS)) is None
    assert (
        tiles_space(make_request(gemm(32, 32, 64), AMX, frozenset())) is None
    )  # weights that are no constants
