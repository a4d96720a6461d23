"""Whole programs for aarch64, untuned, under qemu: interpreter = native to the bit, as on x86."""

from pathlib import Path

import numpy as np
import pytest
from aarch64 import needs_qemu, run_aarch64
from native import bits, kernels_of
from schedule_programs import PROGRAMS

from tilewright.ir.dtype import DType
from tilewright.ir.expr import UnaryOp, cast, maximum, unary
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.target.target import AARCH64, AARCH64_SVE_256, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func, poisoned_array


def numbers() -> Func:
    """Functions, rounding, and numbers of 16 bits."""
    b = FuncBuilder("numbers")
    x = b.param("X", (3, 13), DType.F32)
    e = b.compute(
        "E", (3, 13), lambda i, j: unary(UnaryOp.TANH, x[i, j]) + unary(UnaryOp.FLOOR, x[i, j] * 8.0)
    )
    h = b.compute("H", (3, 13), lambda i, j: cast(DType.F16, maximum(e[i, j], -3)))
    g = b.compute("G", (3, 13), lambda i, j: cast(DType.BF16, h[i, j]))
    return b.finish(
        b.compute("Y", (3, 13), lambda i, j: cast(DType.F32, g[i, j]) * unary(UnaryOp.SQRT, x[i, j]))
    )


def inputs_of(func: Func) -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(p.shape).astype(p.dtype.numpy)
        if p.dtype.is_float
        else rng.integers(-9, 10, p.shape).astype(p.dtype.numpy)
        for p in func.params
        if p not in func.outputs
    ]


def run_lowered(func: Func, inputs: list[Array], target: Target) -> list[Array]:
    """The interpreter on the kernels as the code generator takes them: functions have become arithmetic."""
    kernels, shared = kernels_of(func, target)
    given = [p for p in func.params if p not in func.outputs]
    arrays = dict(zip(given, inputs, strict=True)) | {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    for kernel in kernels:
        interpret_func(kernel, {p: arrays[p] for p in kernel.params})
    return [arrays[o] for o in func.outputs]


@needs_qemu
@pytest.mark.parametrize("target", [AARCH64, AARCH64_SVE_256], ids=["neon", "sve"])
@pytest.mark.parametrize("name", ["matmul_f32", "conv", "row_max", "elementwise", "softmax", "numbers"])
def test_the_default_schedule(name: str, target: Target, tmp_path: Path) -> None:
    func = schedule_func(numbers() if name == "numbers" else PROGRAMS[name], target, frozenset()).func
    inputs = inputs_of(func)
    found_all, wanted = run_aarch64(func, inputs, tmp_path, target), run_lowered(func, inputs, target)
    for found, expected in zip(found_all, wanted, strict=True):
        np.testing.assert_array_equal(bits(found), bits(expected))
