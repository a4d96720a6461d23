"""What tensorized programs look like, scheduled and lowered, and the LLVM IR of an instruction with its accumulator in
registers.
"""

from collections.abc import Callable

import pytest
from native import kernels_of

from tilewright.codegen.kernel import kernel_ir
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope, cast
from tilewright.schedule.schedule import Schedule
from tilewright.target.target import AVX2
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.printer import print_func


def tile() -> Func:
    b = FuncBuilder("tile")
    x, y = b.param("A", (2, 8), DType.F32), b.param("B", (8, 16), DType.F32)
    c = b.reduce("C", (2, 16), (8,), lambda i, j, k: (x[i, k], y[k, j]))
    s = Schedule(single(b.finish(c)))
    s.cache_write("C", "C", Scope.REGISTER)
    s.reorder("C_k", "C_j", "C_i")
    s.decompose_reduction("C", "C_k")
    s.tensorize("C_k", "x86.f32.tile_2x16")
    return s.module.funcs[0]


def dot() -> Func:
    b = FuncBuilder("dot")
    x, y = b.param("A", (6,), DType.I16), b.param("B", (3, 8, 2), DType.I16)
    c = b.reduce(
        "C", (8,), (3, 2), lambda j, t, k: cast(DType.I32, x[t * 2 + k]) * cast(DType.I32, y[t, j, k])
    )
    s = Schedule(single(b.finish(c)))
    once = s.add_unit_loop("C")
    out = s.cache_write("C", "C", Scope.REGISTER)
    s.reorder(once, "C_t", "C_j", "C_k")
    s.reverse_compute_at(out, once)
    s.decompose_reduction("C", "C_t")
    s.vectorize("C_j_init")
    s.tensorize("C_j", "x86.i16.dot2_8")
    s.vectorize("C_C_out_0")
    return s.module.funcs[0]


@pytest.mark.parametrize("make", [tile, dot], ids=lambda f: f.__name__)
def test_scheduled(
    make: Callable[[], Func], golden: Callable[[str, str], None], sound: Callable[[Func], Func]
) -> None:
    golden(f"tensorized_{make.__name__}.tir", print_func(sound(make())))


def test_the_code_of_an_emit(golden: Callable[[str, str], None]) -> None:
    (kernel,), _ = kernels_of(dot(), AVX2)
    golden("tensorized_dot.ll", kernel_ir(kernel))
