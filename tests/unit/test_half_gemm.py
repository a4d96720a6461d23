"""Contractions of halves: operands stay in 16 bits, sums are in f32."""

import ml_dtypes
import numpy as np
import pytest
from native import run_native

from tilewright.families.gemm.recipe import try_contraction, try_half_contraction
from tilewright.families.gemm.space import GemmSpace, gemm_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import cast
from tilewright.search.default import choose_schedule, make_request
from tilewright.support.processor import cpu_features
from tilewright.target.target import AVX2, AVX512, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import blocks
from tilewright.tir.verify import verify_func

F32 = DType.F32
TARGETS = {"avx2": AVX2, "avx512": AVX512}
NUMPY = {DType.F16: np.dtype(np.float16), DType.BF16: np.dtype(ml_dtypes.bfloat16), F32: np.dtype(np.float32)}


def gemm(m: int, n: int, k: int, left: DType, right: DType) -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (m, k), left), b.param("B", (k, n), right)
    total = b.reduce("sum", (m, n), (k,), lambda i, j, r: (cast(F32, x[i, r]), cast(F32, y[r, j])), "sum")
    return b.finish(b.compute("C", (m, n), lambda i, j: cast(left, total[i, j])))


CASES = {
    "f16": gemm(13, 40, 12, DType.F16, DType.F16),
    "bf16": gemm(13, 40, 12, DType.BF16, DType.BF16),
    "one row": gemm(1, 48, 16, DType.BF16, DType.BF16),
    "f32 by f16": gemm(7, 21, 8, F32, DType.F16),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("func", CASES.values(), ids=CASES)
def test_every_point_keeps_the_meaning(func: Func, target: Target) -> None:
    space = gemm_space(make_request(func, target, frozenset({"B"})))
    assert isinstance(space, GemmSpace)
    points, _ = space.ranked()
    rng = np.random.default_rng(3)
    arrays = [
        rng.integers(-3, 4, p.shape).astype(NUMPY[p.dtype]) for p in func.params if p not in func.outputs
    ]
    (want,) = run_func(func, *arrays)
    for n in (0, *rng.choice(len(points), min(6, len(points)), replace=False)):
        built = space.build(space.decisions(points[n])).func
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)
        if target.features <= cpu_features():
            np.testing.assert_array_equal(run_native(built, arrays, target)[0], want)


def test_weights_stay_in_16_bits() -> None:
    func = gemm(128, 512, 512, DType.F16, DType.F16)
    chosen = choose_schedule(func, AVX2, frozenset({"B"}))
    assert chosen.family == "gemm"
    packed = [b for b in chosen.draft.func.locals if b.name.endswith("B_reindex")]
    assert [b.dtype for b in packed] == [DType.F16]


def test_floats_are_no_halves() -> None:
    (block, *_) = [b for b in blocks(gemm(4, 8, 8, F32, F32).body) if b.is_reduction]
    assert try_half_contraction(block) is None and try_contraction(block) is not None
