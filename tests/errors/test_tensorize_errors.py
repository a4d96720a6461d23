"""Nests that are not the intrinsic: one test per condition. The message has the step, the nest and the condition."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, Var, cast
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Annotate,
    CacheWrite,
    DecomposeReduction,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Split,
    Tensorize,
    Vectorize,
)
from tilewright.schedule.trace import replay
from tilewright.support.errors import ScheduleError
from tilewright.target.intrinsic import MEMORY, BodyLoop, Intrinsic, Operand, state
from tilewright.target.match import Mismatch, match_nest
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func
from tilewright.tir.stmt import Store

TILE = "x86.f32.tile_6x16"


def gemm(dtype: DType = DType.F32, rows: int = 6, columns: int = 16, *, transposed: bool = False) -> Func:
    b = FuncBuilder("gemm")
    x = b.param("A", (rows, 8), dtype)
    y = b.param("B", (columns, 8) if transposed else (8, columns), dtype)

    def factors(i: Expr, j: Expr, k: Expr) -> tuple[Expr, Expr]:
        return x[i, k], y[j, k] if transposed else y[k, j]

    return b.finish(b.reduce("C", (rows, columns), (8,), factors))


REGISTERS = (
    CacheWrite("C", "C", Scope.REGISTER),
    Reorder(("C_k", "C_i", "C_j")),
    DecomposeReduction("C", "C_k"),
)


LANES = (Reorder(("C_k", "C_j_0", "C_i", "C_j_1")), Vectorize("C_j_0"))


def refused(step: Step, *before: Step, func: Func | None = None) -> str:
    module = replay(single(func or gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    assert str(e.value).startswith(f"{step}: ")
    return str(e.value)


def test_the_message_has_step_condition_nest_and_hint() -> None:
    assert refused(Tensorize("C_k", "x86.f32.tile_4x16"), *REGISTERS).splitlines() == [
        "Tensorize(at='C_k', intrinsic='x86.f32.tile_4x16'): C_i has 6 iterations for the loop i of "
        "x86.f32.tile_4x16, which has 4",
        "  at: gemm",
        "    | for C_k in range(8):    <-- here",
        "    |     for C_i in range(6):",
        "    |         for C_j in range(16):",
        "    |             C(C_vi = C_i, C_vj = C_j, C_vk = reduce(C_k))",
        "  try: split a loop so that the part inside the nest fits, or take another intrinsic",
    ]


def test_no_such_intrinsic() -> None:
    text = refused(Tensorize("C_k", "x86.f32.tile_16x6"), *REGISTERS)
    assert "no intrinsic is named 'x86.f32.tile_16x6'" in text
    assert "did you mean" in text


def test_an_extent_is_missing() -> None:
    text = refused(Tensorize("C_j", TILE), *REGISTERS)
    assert "the nest has one iteration for the loop i" in text


def test_another_computation() -> None:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (6, 8), DType.F32), b.param("B", (8, 16), DType.F32)
    c = b.reduce("C", (6, 16), (8,), lambda i, j, k: x[i, k] + y[k, j])
    text = refused(Tensorize("C_k", TILE), *REGISTERS, func=b.finish(c))
    assert "it computes C_register[C_i, C_j] = C_register[C_i, C_j] + (A[C_i, C_k] + B[C_k, C_j])" in text
    assert f"{TILE} computes C[i, j] = fma(A[i, k], B[k, j], C[i, j])" in text


def test_another_type() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, func=gemm(DType.F64))
    assert "C_register is f64, and the operand C of x86.f32.tile_6x16 is f32" in text


def test_another_scope() -> None:
    text = refused(Tensorize("C_k", TILE), Reorder(("C_k", "C_i", "C_j")), DecomposeReduction("C", "C_k"))
    assert "C is in global scope, and the operand C of x86.f32.tile_6x16 is in register" in text


def test_an_operand_that_is_not_contiguous() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, func=gemm(transposed=True))
    assert "neighbours along C_j are 8 elements apart in B, and 1 in the operand B" in text
    assert "TransformLayout('B', …)" in text


def test_a_loop_that_moves_other_operands() -> None:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (3, 6, 8), DType.F32), b.param("B", (3, 8, 16), DType.F32)
    c = b.reduce("C", (3, 6, 16), (8,), lambda n, i, j, k: (x[n, i, k], y[n, k, j]))
    steps = (
        CacheWrite("C", "C", Scope.REGISTER),
        Reorder(("C_k", "C_n", "C_i", "C_j")),
        DecomposeReduction("C", "C_k"),
    )
    text = refused(Tensorize("C_k", TILE), *steps, func=b.finish(c))
    assert f"C_n moves C_register and A and B, as no loop of {TILE} does" in text
    assert "i moves C and A; j moves C and B; k moves A and B" in text


def test_an_address_that_is_not_linear() -> None:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (6, 8), DType.F32), b.param("B", (8, 16), DType.F32)
    c = b.reduce("C", (6, 16), (8,), lambda i, j, k: (x[i, k // 2], y[k, j]))
    text = refused(Tensorize("C_k", TILE), *REGISTERS, func=b.finish(c))
    assert "the address of A[C_i, C_k // 2] is not linear in C_k" in text


def test_two_loops_in_the_wrong_order() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, Split("C_i", (2, 3)), Reorder(("C_i_1", "C_i_0")))
    assert "C_i_1 and C_i_0 are both the loop i" in text
    assert "does not move with them as with one loop" in text


def test_two_loops_for_the_lanes() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, Split("C_j", (4, 4)))
    assert "C_j_0 and C_j_1 have 4 x 4 iterations, and the intrinsic's loops 2 x 8" in text
    eight = refused(
        Tensorize("C_k", "x86.f32.tile_6x8"), *REGISTERS, Split("C_j", (2, 4)), func=gemm(columns=8)
    )
    assert "C_j_0 and C_j_1 would be the lanes of one vector" in eight


def test_a_loop_with_remarks_would_be_split() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, Annotate("C_j", "note", 1))
    assert "C_j has the annotation 'note'" in text


def test_an_init() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS[:2])
    assert "C has an init" in text
    assert "DecomposeReduction('C', …)" in text


def test_a_predicate() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, Split("C_i", (None, 4)))
    assert "C has a predicate" in text


def test_two_blocks() -> None:
    steps = (CacheWrite("C", "C", Scope.REGISTER), ReverseComputeAt("C_C_out", "C_j"))
    text = refused(Tensorize("C_i", TILE), *steps)
    assert "there is more than one block in the nest" in text


def test_a_loop_that_runs_at_once() -> None:
    text = refused(Tensorize("C_k", TILE), *REGISTERS, Vectorize("C_j"))
    assert "C_j is vectorized already" in text
    shared = (Reorder(("C_k", "C_i", "C_j")), DecomposeReduction("C", "C_k"), Parallel("C_i"))
    assert "C_i is parallel already" in refused(Tensorize("C_k", TILE), *shared)


def test_lanes_of_lanes() -> None:
    text = refused(Tensorize("C_i", "x86.f32.tile_6x8"), *REGISTERS, Split("C_j", (2, 8)), *LANES)
    assert "it is inside the vectorized loop C_j_0" in text


def test_twice() -> None:
    func = parse_func(
        """\
@func
def dot(A: i16[2], B: i16[8, 2], C: out(i32[8])):
    for j in range(8):
        for k in range(2):
            with block("C"):
                vj = spatial(8, j)
                vk = reduce(2, k)
                C[vj] = C[vj] + cast(i32, A[vk]) * cast(i32, B[vj, vk])
"""
    )
    once = Tensorize("j", "x86.i16.dot2_8")
    assert "this nest is a tensor intrinsic already" in refused(once, once, func=func)


def test_the_output_is_an_input_too() -> None:
    """No intrinsic of ours takes its output and an input from one scope and type, so this one is made up."""
    i, j = Var("i"), Var("j")
    c, a = Buffer("C", (4,), DType.F32), Buffer("A", (4, 4), DType.F32)
    rows = Intrinsic(
        "test.rows",
        state("rows", (c, a), {i: 4}, {j: 4}, c[i], c[i] + a[i, j]),
        (Operand("C", MEMORY), Operand("A", MEMORY)),
        frozenset(),
        body=(BodyLoop("j"), BodyLoop("i")),
    )
    x = Buffer("X", (5, 4), DType.F32)
    place = x[0, i]
    store = Store(x, place.indices, place + x[j + 1, i])
    ranges = {v: Interval(0, 3) for v in (i, j)}
    found = match_nest(rows, rows.loops, store, Simplifier(ranges))
    assert isinstance(found, Mismatch)
    assert found.reason == "X is written, and read as the operand A of test.rows"


def test_elements_that_are_written_twice() -> None:
    func = parse_func(
        """\
@func
def overlap(A: f32[6, 4], B: f32[4, 16], C: out(f32[21])):
    T = alloc(f32[21], "register")
    for k in range(4):
        for i in range(6):
            for j in range(16):
                with block("T"):
                    vi = spatial(6, i)
                    vj = spatial(16, j)
                    vk = reduce(4, k)
                    T[vi + vj] = fma(A[vi, vk], B[vk, vj], T[vi + vj])
"""
    )
    assert "iterations of j write elements of T that others write" in refused(Tensorize("k", TILE), func=func)


def test_a_pair_that_is_not_side_by_side() -> None:
    b = FuncBuilder("dot")
    x, y = b.param("A", (2,), DType.I16), b.param("B", (2, 8), DType.I16)
    c = b.reduce("C", (8,), (2,), lambda j, k: cast(DType.I32, x[k]) * cast(DType.I32, y[k, j]))
    text = refused(
        Tensorize("C_k", "x86.i16.dot2_8"),
        Reorder(("C_k", "C_j")),
        DecomposeReduction("C", "C_k"),
        func=b.finish(c),
    )
    assert "neighbours along C_k are 8 elements apart in B, and 1 in the operand B" in text
