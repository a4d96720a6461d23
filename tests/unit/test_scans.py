"""Scans: along lanes or across them, whatever is left over of either."""

import numpy as np
import pytest
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Scope, UnaryOp, unary
from tilewright.ops.core.scan import CumSum
from tilewright.search.default import choose_schedule, schedule_func
from tilewright.support.sizes import Dim, sym_int
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.passes.split_phases import part_loops
from tilewright.tir.pipeline import lower_func
from tilewright.tir.stmt import Alloc, LoopKind, loops, walk_stmts


def summed(shape: tuple[int, ...], axis: int) -> Func:
    b = FuncBuilder("f")
    return b.finish(*CumSum(axis).compute(b, [b.param("x", shape, DType.F32)], "y"))


def check(shape: tuple[int, ...], axis: int, target: Target = AVX2) -> Func:
    func = schedule_func(summed(shape, axis), target).func
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    (got,) = run_native(func, [x], target)
    np.testing.assert_array_equal(got, np.cumsum(x, axis))
    return func


def kinds(func: Func) -> set[LoopKind]:
    return {n.kind for n in loops(func.body)}


@pytest.mark.parametrize("target", [AVX2, BASELINE], ids=["avx2", "baseline"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 9), (2, 3, 8), (5, 1, 19), (3, 40, 33), (7, 1, 1)])
def test_scans_of_any_shape(shape: tuple[int, ...], axis: int, target: Target) -> None:
    check(shape, axis, target)


def test_across_the_memory_there_are_vectors_and_parts() -> None:
    func = check((64, 1536), 0)
    assert {LoopKind.VECTORIZED, LoopKind.PARALLEL} <= kinds(func)


def test_across_the_memory_workers_meet_after_blocks_of_rows() -> None:
    (phase,), _ = lower_func(check((96, 1024), 0))
    blocks, parts = part_loops(phase.func.body)
    assert blocks.kind is LoopKind.SERIAL and parts.extent > 1


def test_along_the_memory_prefixes_of_vectors_are_in_registers() -> None:
    func = check((64, 500), 1)
    assert LoopKind.PARALLEL in kinds(func)
    (phase,), _ = lower_func(func)
    made = [n.buffer for n in walk_stmts(phase.func.body) if isinstance(n, Alloc)]
    assert made and all(b.scope is Scope.REGISTER for b in made)


@pytest.mark.parametrize("n", [1, 7, 32, 33, 64])
@pytest.mark.parametrize(
    "way", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}]
)
@pytest.mark.parametrize(("shape", "axis", "open_axis"), [((6, 64), 1, 1), ((64, 40), 0, 0), ((64, 9), 1, 0)])
def test_beyond_the_size_in_use_nothing_is_taken_up(
    shape: tuple[int, int], axis: int, open_axis: int, way: dict[str, bool], n: int
) -> None:
    """What lies there is not a number."""
    b = FuncBuilder("f")
    sizes = tuple(sym_int(Dim("n", 1, 64)) if d == open_axis else e for d, e in enumerate(shape))
    op = CumSum(axis, **way)
    func = schedule_func(b.finish(*op.compute(b, [b.param("x", sizes, DType.F32)], "y")), AVX2).func
    used = tuple(slice(n) if d == open_axis else slice(None) for d in range(2))
    x = np.full(shape, np.nan, np.float32)
    x[used] = np.random.default_rng(0).integers(-3, 4, x[used].shape)
    (got,) = run_native(func, [x, np.array([n])], AVX2)
    np.testing.assert_array_equal(got[used], op.reference([x[used]])[0])


def test_maps_before_and_after_a_scan_are_in_its_sweep() -> None:
    b = FuncBuilder("f")
    x, z = b.param("x", (40, 70), DType.F32), b.param("z", (40, 70), DType.F32)

    def power(i: Expr, j: Expr) -> Expr:
        return unary(UnaryOp.EXP, x[i, j])

    def scaled(i: Expr, j: Expr) -> Expr:
        return c[i, j] * z[i, j]

    e = b.compute("e", (40, 70), power)
    (c,) = CumSum(1).compute(b, [e], "c")
    func = b.finish(b.compute("y", (40, 70), scaled))
    chosen = choose_schedule(func, AVX2)
    assert chosen.family == "stream" and len(lower_func(chosen.draft.func)[0]) == 1
    xs, zs = np.random.default_rng(0).standard_normal((2, 40, 70)).astype(np.float32)
    (got,) = run_native(chosen.draft.func, [xs, zs], AVX2)
    np.testing.assert_allclose(got, np.cumsum(np.exp(xs), 1) * zs, rtol=1e-5, atol=1e-5)
