"""Contractions of short integers by dot products: every point keeps the meaning, in the interpreter and natively."""

import numpy as np
import pytest
from assembly import innermost_loops
from native import kernels_of, run_native

from tilewright.codegen.kernel import kernel_ir
from tilewright.codegen.objects import compile_assembly
from tilewright.families.gemm.dot_products import dot_product
from tilewright.families.gemm.recipe import try_integer_contraction
from tilewright.families.gemm.space import GemmSpace, gemm_space
from tilewright.families.winograd.space import winograd_space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, cast, maximum, minimum
from tilewright.search.default import choose_schedule, make_request
from tilewright.support.arrays import Array
from tilewright.support.processor import cpu_features
from tilewright.target.target import AARCH64, AVX2, AVX512, AVX512_VNNI, AVX_VNNI, Target
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import run_func
from tilewright.tir.stmt import Emit, blocks, walk_stmts
from tilewright.tir.verify import verify_func

I32 = DType.I32
TARGETS = {"avx2": AVX2, "avx512": AVX512, "vnni": AVX512_VNNI, "avx-vnni": AVX_VNNI}


def gemm(m: int, n: int, k: int, left: DType = DType.U8, right: DType = DType.I8) -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (m, k), left), b.param("B", (k, n), right)
    return b.finish(
        b.reduce("C", (m, n), (k,), lambda i, j, r: (cast(I32, x[i, r]), cast(I32, y[r, j])), "sum")
    )


def bounded(m: int, n: int, k: int) -> Func:
    """With weights that are clamped to what two products of bytes may have to fit 16 bits."""
    b = FuncBuilder("bounded")
    x, y = b.param("A", (m, k), DType.U8), b.param("B", (k, n), DType.I8)

    def factors(i: Expr, j: Expr, r: Expr) -> tuple[Expr, Expr]:
        return cast(I32, x[i, r]), minimum(maximum(cast(I32, y[r, j]), -64), 64)

    return b.finish(b.reduce("C", (m, n), (k,), factors, "sum"))


def convolution(channels: int, filters: int, size: int, stride: int = 1) -> Func:
    """3×3, channels last, with an epilogue."""
    out = (size - 3) // stride + 1
    b = FuncBuilder("convolution")
    x, w = b.param("X", (size, size, channels), DType.U8), b.param("W", (filters, channels, 3, 3), DType.I8)
    bias = b.param("bias", (filters,), I32)
    total = b.reduce(
        "sum",
        (out, out, filters),
        (channels, 3, 3),
        lambda h, v, f, c, r, s: (
            cast(I32, x[h * stride + r, v * stride + s, c]),
            cast(I32, w[f, c, r, s]),
        ),
        "sum",
    )
    return b.finish(b.compute("Y", (out, out, filters), lambda h, v, f: total[h, v, f] + bias[f]))


FUNCS = {
    "bytes": gemm(13, 40, 12),
    "one row": gemm(1, 48, 16),
    "part of a vector": gemm(9, 21, 8),
    "short": gemm(7, 32, 6, DType.I16, DType.I16),
    "mixed": gemm(7, 24, 8, DType.I16, DType.I8),
    "signed": gemm(6, 16, 8, DType.I8, DType.I8),
    "bounded": bounded(9, 40, 12),
    "bounded, one row": bounded(1, 21, 16),
    "bounded, in pairs": bounded(5, 16, 6),
    "convolution": convolution(8, 24, 6),
    "strided": convolution(4, 16, 7, 2),
}


def inputs_of(func: Func) -> list[Array]:
    """Ends of ranges among them: a sum that saturates would show."""
    rng = np.random.default_rng(4)
    found: list[Array] = []
    for p in func.params:
        if p in func.outputs:
            continue
        info = np.iinfo(p.dtype.numpy) if p.dtype.bytes < 4 else np.iinfo(np.int16)
        some = rng.integers(info.min, info.max + 1, p.shape)
        ends = rng.choice([info.min, info.max], p.shape)
        found.append(np.where(rng.random(p.shape) < 0.5, some, ends).astype(p.dtype.numpy))
    return found


def space_of(func: Func, target: Target) -> GemmSpace:
    found = gemm_space(make_request(func, target, frozenset({"B", "W"})))
    assert isinstance(found, GemmSpace)
    return found


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("func", FUNCS.values(), ids=FUNCS)
def test_every_point_keeps_the_meaning(func: Func, target: Target) -> None:
    space = space_of(func, target)
    points, _ = space.ranked()
    rng = np.random.default_rng(3)
    arrays = inputs_of(func)
    (want,) = run_func(func, *arrays)
    can_run = target.features <= cpu_features()
    for n in (0, *rng.choice(len(points), min(6, len(points)), replace=False)):
        built = space.build(space.decisions(points[n])).func
        verify_func(built)
        np.testing.assert_array_equal(run_func(built, *arrays)[0], want)
        if can_run:
            np.testing.assert_array_equal(run_native(built, arrays, target)[0], want)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_best_point_is_made_of_dot_products(target: Target) -> None:
    func = gemm(48, 64, 64)
    space = space_of(func, target)
    points, _ = space.ranked()
    built = space.build(space.decisions(points[0])).func
    dot = dot_product(target, DType.U8, DType.I8)
    assert dot is not None
    emitted = {s.intrinsic for s in walk_stmts(built.body) if isinstance(s, Emit)}
    assert emitted == {dot.names[target.lanes(4)]}
    assert choose_schedule(func, target, frozenset({"B"})).family == "gemm"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (AVX2, "x86.u8i8.bounded4_8"),
        (AVX512, "avx512.u8i8.bounded4_16"),
        (AVX512_VNNI, "vnni.u8i8.dot4_16"),
    ],
    ids=["avx2", "avx512", "vnni"],
)
def test_weights_within_bounds_take_fewer_instructions(target: Target, name: str) -> None:
    func = bounded(48, 64, 64)
    space = space_of(func, target)
    built = space.build(space.decisions(space.ranked()[0][0])).func
    assert {s.intrinsic for s in walk_stmts(built.body) if isinstance(s, Emit)} == {name}


def test_avx_vnni_keeps_a_tile_in_registers() -> None:
    func = gemm(48, 64, 64)
    space = space_of(func, AVX_VNNI)
    built = space.build(space.decisions(space.ranked()[0][0])).func
    kernels, _ = kernels_of(built, AVX_VNNI)
    text = compile_assembly(kernel_ir(kernels[-1]), AVX_VNNI)
    (loop,) = (n for n in innermost_loops(text) if "vpdpbusd" in {i.name for i in n.instructions})
    assert not loop.count("touches_stack") and not loop.count("is_store")
    assert "%zmm" not in text and text.count("vpdpbusd") == text.count("{vex}\tvpdpbusd")


def test_what_a_target_multiplies() -> None:
    bytes_, shorts = dot_product(AVX512_VNNI, DType.U8, DType.I8), dot_product(AVX2, DType.U8, DType.I8)
    assert bytes_ is not None and (bytes_.a, bytes_.b, bytes_.group) == (DType.U8, DType.I8, 4)
    assert shorts is not None and (shorts.a, shorts.b, shorts.group) == (DType.I16, DType.I16, 2)
    wide = dot_product(AVX512_VNNI, DType.I16, DType.I8)
    assert wide is not None and wide.names[16] == "vnni.i16.dot2_16"
    assert dot_product(AARCH64, DType.F32, DType.F32) is None


@pytest.mark.parametrize(
    "func", [gemm(4, 16, 5), gemm(4, 16, 8, DType.F32, DType.F32)], ids=["odd", "floats"]
)
def test_what_is_no_contraction_of_integers(func: Func) -> None:
    (block,) = blocks(func.body)
    assert try_integer_contraction(block, AVX2) is None


def test_other_families_leave_integers_alone() -> None:
    assert winograd_space(make_request(convolution(8, 24, 6), AVX2)) is None
