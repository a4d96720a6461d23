"""Scans: several rows at once, or lanes side by side, whatever is left over of either."""

import numpy as np
import pytest
from native import run_native

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope
from tilewright.ops.core.scan import CumSum
from tilewright.search.default import schedule_func
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
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


def test_along_the_memory_sums_of_several_rows_are_in_registers() -> None:
    func = check((64, 500), 1)
    assert LoopKind.PARALLEL in kinds(func)
    (phase,), _ = lower_func(func)
    made = [n.buffer for n in walk_stmts(phase.func.body) if isinstance(n, Alloc)]
    assert len(made) == 4 and all(b.scope is Scope.REGISTER for b in made)


def test_a_single_row_is_summed_in_a_register() -> None:
    (phase,), _ = lower_func(check((1, 3000), 1))
    assert sum(isinstance(n, Alloc) for n in walk_stmts(phase.func.body)) == 1
