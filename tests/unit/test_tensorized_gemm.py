"""Whole products around tensor instructions: packed operands, register tiles, several k steps; exact to the bit.

The byte product of the benchmark runs here on small sizes, and the products for Arm under qemu.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from aarch64 import needs_qemu, run_aarch64
from int8_gemm import int8_gemm, operands, schedule_int8_gemm
from native import HAS_AVX2, bits, kernels_of, run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Scope, cast
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Distribute
from tilewright.target.target import AVX2, BASELINE, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.interp import run_func
from tilewright.tir.verify import verify_func

SIZES = [(12, 32, 6), (13, 32, 8), (1, 16, 2), (7, 128, 4)]


@pytest.mark.parametrize("target", [AVX2, BASELINE], ids=["avx2", "baseline"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bytes_on_x86(size: tuple[int, int, int], target: Target) -> None:
    if target is AVX2 and not HAS_AVX2:
        pytest.skip("this machine has no AVX2")
    func = schedule_int8_gemm(int8_gemm(*size)).module.funcs[0]
    verify_func(func)
    a, b = operands(*size)
    expected = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(run_func(func, a, b)[0], expected)
    np.testing.assert_array_equal(run_native(func, [a, b], target)[0], expected)


def test_the_loop_of_the_byte_product_stays_in_registers() -> None:
    kernels, _ = kernels_of(schedule_int8_gemm(int8_gemm(12, 32, 64)).module.funcs[0], AVX2)
    text = compile_assembly(kernel_ir(kernels[-1]), AVX2)
    assert text.count("vpmaddwd") == text.count("vpaddd") == 12
    assert text.count("vpbroadcastd") == 6
    assert "(%rsp)" not in text


# --------------------------------------------------------------------------------------------------------------- Arm


def product(m: int, n: int, k: int, dtype: DType) -> Func:
    """Copies of both operands that may have any layout, and their product."""
    b = FuncBuilder("product")
    x, y = b.param("A", (m, k), dtype), b.param("B", (k, n), dtype)
    px = b.compute("PA", (m, k), lambda i, k: x[i, k] + 0)
    py = b.compute("PB", (k, n), lambda k, j: y[k, j] + 0)

    def term(i: Expr, j: Expr, k: Expr) -> Expr | tuple[Expr, Expr]:
        if dtype.is_float:
            return px[i, k], py[k, j]
        return cast(DType.I32, px[i, k]) * cast(DType.I32, py[k, j])

    return b.finish(b.reduce("C", (m, n), (k,), term))


def registers(s: Schedule, rows: int, columns: int) -> tuple[str, str]:
    """Tiles of rows x columns, their accumulators in registers; the loops inside of a tile."""
    out = s.cache_write("C", "C", Scope.REGISTER)
    i0, i1 = s.split("C_i", (None, rows))
    j0, j1 = s.split("C_j", (None, columns))
    s.reorder(i0, j0, i1, j1, "C_k")
    s.reverse_compute_at(out, j1)
    for loop in (j1, i1):
        s.unroll(s.apply(Distribute(loop)).part(1))
    return i1, j1


def arm_f32() -> Func:
    s = Schedule(single(product(8, 16, 5, DType.F32)))
    s.transform_layout("PB", Layout((SplitDim(1, 8), ReorderDims((1, 0, 2)))))
    i, j = registers(s, 4, 8)
    s.reorder("C_k", i, j)
    s.decompose_reduction("C", "C_k")
    s.unroll(f"{i}_init")
    s.unroll(f"{j}_init")
    s.tensorize("C_k", "arm.f32.tile_4x8")
    return s.module.funcs[0]


def arm_sdot() -> Func:
    s = Schedule(single(product(4, 16, 12, DType.I8)))
    s.transform_layout("PB", Layout((SplitDim(1, 8), SplitDim(0, 4), ReorderDims((2, 0, 3, 1)))))
    i, j = registers(s, 2, 8)
    vector, lane = s.split(j, (None, 4))
    k, byte = s.split("C_k", (None, 4))
    s.reorder(k, i, vector, lane, byte)
    s.unroll(i)
    s.unroll(vector)
    s.decompose_reduction("C", k)
    s.vectorize(f"{lane}_init")
    s.tensorize(lane, "arm.i8i8.sdot")
    return s.module.funcs[0]


def arm_smmla() -> Func:
    """Tiles of 4 x 4 as four products of 2 x 8 and 8 x 2. The accumulators of each lie side by side."""
    s = Schedule(single(product(8, 8, 16, DType.I8)))
    s.transform_layout("PA", Layout((SplitDim(0, 2), SplitDim(2, 8), ReorderDims((0, 2, 1, 3)))))
    s.transform_layout("PB", Layout((SplitDim(1, 2), SplitDim(0, 8), ReorderDims((2, 0, 3, 1)))))
    i, j = registers(s, 4, 4)
    s.transform_layout("C_register", Layout((SplitDim(0, 2), SplitDim(2, 2), ReorderDims((0, 2, 1, 3)))))
    i0, i1 = s.split(i, (None, 2))
    j0, j1 = s.split(j, (None, 2))
    k, byte = s.split("C_k", (None, 8))
    s.reorder(k, i0, j0, i1, j1, byte)
    s.unroll(i0)
    s.unroll(j0)
    s.decompose_reduction("C", k)
    s.unroll(f"{i1}_init")
    s.unroll(f"{j1}_init")
    s.tensorize(i1, "arm.i8i8.smmla")
    return s.module.funcs[0]


@needs_qemu
@pytest.mark.parametrize("make", [arm_f32, arm_sdot, arm_smmla], ids=lambda f: f.__name__)
def test_products_on_arm(make: Callable[[], Func], tmp_path: Path) -> None:
    func = make()
    verify_func(func)
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal(p.shape).astype(np.float32)
        if p.dtype.is_float
        else rng.choice(np.array([-128, -127, -1, 3, 127], np.int8), p.shape)
        for p in func.params[:2]
    )
    (expected,) = run_func(func, a, b)
    if a.dtype == np.int8:
        np.testing.assert_array_equal(expected, a.astype(np.int32) @ b.astype(np.int32))
    np.testing.assert_array_equal(bits(run_aarch64(func, [a, b], tmp_path)[0]), bits(expected))
