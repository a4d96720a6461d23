"""Tensorize: nests before and after, and the same code as the steps that it stands for."""

import pytest
from native import kernels_of
from schedule_programs import check, outline

from tilewright.codegen.kernel import kernel_ir
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Scope, Var, cast, free_vars
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Blockize,
    CacheWrite,
    DecomposeReduction,
    Reorder,
    ReverseComputeAt,
    Split,
    Tensorize,
    TransformLayout,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import replay
from tilewright.target import x86
from tilewright.target.intrinsics import find_intrinsic, intrinsics_of
from tilewright.target.target import AVX2, BASELINE
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.stmt import Emit, walk_stmts


def gemm(m: int = 12, n: int = 32, k: int = 8) -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (m, k), DType.F32), b.param("B", (k, n), DType.F32)
    return b.finish(b.reduce("C", (m, n), (k,), lambda i, j, k: (x[i, k], y[k, j])))


def conv() -> Func:
    b = FuncBuilder("conv")
    x, w = b.param("X", (6, 8, 5), DType.F32), b.param("W", (3, 3, 5, 16), DType.F32)
    return b.finish(
        b.reduce(
            "C",
            (4, 6, 16),
            (3, 3, 5),
            lambda i, j, o, r, s, c: (w[r, s, c, o], x[i + r, j + s, c]),
        )
    )


def dot(m: int = 4, n: int = 16, k: int = 6) -> Func:
    b = FuncBuilder("dot")
    x, y = b.param("A", (m, k), DType.I16), b.param("B", (k, n), DType.I16)
    wide = b.compute("W", (k, n), lambda k, j: y[k, j] + 0)
    return b.finish(
        b.reduce("C", (m, n), (k,), lambda i, j, k: cast(DType.I32, wide[k, j]) * cast(DType.I32, x[i, k]))
    )


# A 6 x 16 tile in registers, its loops still plain and in an odd order.
TILE = (
    CacheWrite("C", "C", Scope.REGISTER),
    Split("C_i", (None, 6)),
    Split("C_j", (None, 16)),
    Reorder(("C_i_0", "C_j_0", "C_k", "C_j_1", "C_i_1")),
    ReverseComputeAt("C_C_out", "C_j_0"),
    DecomposeReduction("C", "C_k"),
)
# Registers need constant indices.
AROUND = (
    Unroll("C_i_1_init"),
    Unroll("C_C_out_0"),
    *(
        step
        for loop in ("C_j_1_init", "C_C_out_1")
        for step in (Split(loop, (None, 8)), Unroll(f"{loop}_0"), Vectorize(f"{loop}_1"))
    ),
)
BY_HAND = (
    Reorder(("C_i_1", "C_j_1")),
    Unroll("C_i_1"),
    Split("C_j_1", (None, 8)),
    Unroll("C_j_1_0"),
    Vectorize("C_j_1_1"),
)
PAIRS = (
    TransformLayout("W", Layout((SplitDim(0, 2), ReorderDims((0, 2, 1))))),
    Split("C_k", (None, 2)),
    Split("C_j", (None, 8)),
    Reorder(("C_i", "C_j_0", "C_k_0", "C_k_1", "C_j_1")),
    DecomposeReduction("C", "C_k_0"),
)


def nest_of(func: Func, loop: str) -> list[str]:
    """The lines from the loop on, without indentation in front, up to the end of its nest."""
    lines = outline(func.body)
    start = next(n for n, line in enumerate(lines) if line.strip().startswith(f"for {loop} "))
    depth = len(lines[start]) - len(lines[start].lstrip())
    end = next(
        (n for n in range(start + 1, len(lines)) if len(lines[n]) - len(lines[n].lstrip()) <= depth),
        len(lines),
    )
    return [line[depth:] for line in lines[start:end]]


def test_a_body_gives_order_and_kinds() -> None:
    done = check(gemm(), *TILE, Tensorize("C_k", "x86.f32.tile_6x16"))
    assert nest_of(done, "C_k") == [
        "for C_k in range(8):",
        "    for C_i_1 in unrolled(6):",
        "        for C_j_1_0 in unrolled(2):",
        "            for C_j_1_1 in vectorized(8):",
        "                C(C_vi = C_i_0 * 6 + C_i_1, C_vj = C_j_0 * 16 + C_j_1_0 * 8 + C_j_1_1, C_vk = reduce(C_k))",
    ]


def test_a_reduction_may_stay_outside() -> None:
    inside = check(gemm(), *TILE, Tensorize("C_k", "x86.f32.tile_6x16"))
    outside = check(gemm(), *TILE, Tensorize("C_j_1", "x86.f32.tile_6x16"))
    assert outline(inside.body) == outline(outside.body)


def test_unrolled_steps_of_the_reduction_stay() -> None:
    split = (*TILE, Split("C_k", (None, 4)), Unroll("C_k_1"))
    done = check(gemm(), *split, Tensorize("C_k_0", "x86.f32.tile_6x16"))
    assert [line.strip() for line in nest_of(done, "C_k_0")[:3]] == [
        "for C_k_0 in range(2):",
        "for C_k_1 in unrolled(4):",
        "for C_i_1 in unrolled(6):",
    ]


def test_a_loop_that_is_split_already_keeps_its_names() -> None:
    done = check(gemm(), *TILE, Split("C_j_1", (2, 8)), Tensorize("C_k", "x86.f32.tile_6x16"))
    again = check(gemm(), *TILE, Tensorize("C_k", "x86.f32.tile_6x16"))
    assert outline(done.body) == outline(again.body)


def test_several_reduction_loops_and_swapped_factors() -> None:
    steps = (
        CacheWrite("C", "C", Scope.REGISTER),
        Reorder(("C_i", "C_r", "C_s", "C_c", "C_o", "C_j")),
        ReverseComputeAt("C_C_out", "C_i"),
        DecomposeReduction("C", "C_r"),
    )
    for at in ("C_r", "C_s", "C_c", "C_o"):
        done = check(conv(), *steps, Tensorize(at, "x86.f32.tile_6x16"))
        loops = [line.split()[1] for line in nest_of(done, "C_r") if "for " in line]
        assert loops == ["C_r", "C_s", "C_c", "C_j", "C_o_0", "C_o_1"]


@pytest.mark.parametrize(
    "reduction", [(), (Split("C_k", (None, 4)), Unroll("C_k_1"))], ids=["plain", "unrolled"]
)
def test_the_code_is_that_of_unroll_and_vectorize(reduction: tuple[Step, ...]) -> None:
    start = (*TILE, *reduction, *AROUND)
    at = "C_k_0" if reduction else "C_k"
    texts = [
        kernel_ir(kernels_of(replay(single(gemm()), (*start, *steps)).funcs[0], AVX2)[0][0])
        for steps in ((Tensorize(at, "x86.f32.tile_6x16"),), BY_HAND)
    ]
    assert texts[0] == texts[1]


def test_a_block_of_blockize() -> None:
    done = check(gemm(), *TILE, Blockize("C_j_1"), Tensorize("C_o", "x86.f32.tile_6x16"))
    assert nest_of(done, "C_k") == [
        "for C_k in range(8):",
        "    C_o(C_vi_o = C_i_0, C_vj_o = C_j_0, C_vk_o = reduce(C_k))",
        "        for C_i_1 in unrolled(6):",
        "            for C_j_1_0 in unrolled(2):",
        "                for C_j_1_1 in vectorized(8):",
        "                    C(C_vi = C_vi_o * 6 + C_i_1, C_vj = C_vj_o * 16 + C_j_1_0 * 8 + C_j_1_1, "
        "C_vk = reduce(C_vk_o))",
    ]


def test_a_block_of_blockize_with_an_emitter() -> None:
    done = check(dot(), *PAIRS, Blockize("C_k_1"), Tensorize("C_o", "x86.i16.dot2_8"))
    (emit,) = [s for s in walk_stmts(done.body) if isinstance(s, Emit)]
    # Operands are named by the iterators of the block around.
    assert free_vars(emit.operands[0][0]) == {Var("C_vi_o"), Var("C_vj_o")}


def test_an_emitter_gives_an_emit() -> None:
    done = check(dot(), *PAIRS, Tensorize("C_k_1", "x86.i16.dot2_8"))
    (emit,) = [s for s in walk_stmts(done.body) if isinstance(s, Emit)]
    assert emit.intrinsic == "x86.i16.dot2_8"
    assert [[str(e.buffer.name) for e in places] for places in emit.operands] == [
        ["C"] * 2,
        ["A"] * 2,
        ["W"] * 3,
    ]
    assert nest_of(done, "C_k_1") == [
        "for C_k_1 in range(2):",
        "    for C_j_1 in range(8):",
        "        C(C_vi = C_i, C_vj = C_j_0 * 8 + C_j_1, C_vk = reduce(C_k_0 * 2 + C_k_1))",
    ]


def test_the_tiles_of_avx2_fit_its_registers() -> None:
    names = {i.name for i in x86.F32_TILES}
    assert {"x86.f32.tile_6x16", "x86.f32.tile_4x24", "x86.f32.tile_14x8", "x86.f32.tile_1x56"} <= names
    assert "x86.f32.tile_7x16" not in names
    assert len(names) == 30


def test_a_target_has_the_intrinsics_of_its_features() -> None:
    assert find_intrinsic("x86.f32.tile_6x16") in intrinsics_of(AVX2)
    assert intrinsics_of(BASELINE) == ()
