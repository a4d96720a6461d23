"""Steps on loops that are refused: one test per mistake. The message has the step, the place and the condition."""

import pytest

from tilewright.ir.dtype import DType
from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    DecomposeReduction,
    Fuse,
    LoopPartition,
    Parallel,
    Reorder,
    Rfactor,
    Split,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace, replay
from tilewright.support.errors import ScheduleError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func, Module, single
from tilewright.tir.parser import parse_func


def gemm() -> Func:
    b = FuncBuilder("gemm")
    x, y = b.param("A", (8, 6), DType.F32), b.param("B", (6, 4), DType.F32)
    c = b.reduce("C", (8, 4), (6,), lambda i, j, k: (x[i, k], y[k, j]))
    return b.finish(b.compute("D", (8, 4), lambda i, j: c[i, j] * 2.0))


def refused(step: Step, *before: Step, func: Func | None = None) -> ScheduleError:
    module = replay(single(func or gemm()), before)
    with pytest.raises(ScheduleError) as e:
        step.apply(module)
    assert str(e.value).startswith(f"{step}: ")
    return e.value


def test_the_message_has_step_place_condition_and_hint() -> None:
    assert str(refused(Vectorize("C_k"))) == (
        "Vectorize(loop='C_k'): C_k feeds the reduce iterator C_vk of C, so its iterations update the same elements\n"
        "  at: gemm\n"
        "    | for C_i in range(8):\n"
        "    |     for C_j in range(4):\n"
        "    |         for C_k in range(6):    <-- here\n"
        "    |             C(C_vi = C_i, C_vj = C_j, C_vk = reduce(C_k))\n"
        "  try: give each lane a partial result of its own first: Rfactor('C', 'C_k')"
    )


def test_a_refused_step_changes_nothing() -> None:
    module = single(gemm())
    with pytest.raises(ScheduleError):
        Parallel("C_k").apply(module)
    assert isinstance(Parallel("C_i").apply(module), Module)


def test_no_such_loop() -> None:
    assert "no loop or block is named 'X_i'" in refused(Split("X_i", (None, 2))).message


def test_no_such_second_loop() -> None:
    e = refused(Reorder(("C_i", "X_i")))
    assert "gemm has no loop 'X_i'" in e.message
    assert e.hint is not None and "C_i, C_j, C_k" in e.hint


CASES: dict[str, tuple[Trace, Step, str]] = {
    "split_of_a_parallel_loop": ((Parallel("C_i"),), Split("C_i", (None, 2)), "C_i is parallel"),
    "split_by_one_factor": ((), Split("C_i", (8,)), "two or more positive factors"),
    "split_with_two_unknown_factors": ((), Split("C_i", (None, None)), "at most one of them None"),
    "split_by_zero": ((), Split("C_i", (None, 0)), "positive factors"),
    "split_by_negative_factors": ((), Split("C_i", (-2, -4)), "positive factors"),
    "split_that_covers_too_little": ((), Split("C_i", (2, 3)), "cover 6 of 8 iterations"),
    "reorder_of_nothing": ((), Reorder(()), "no loop is named"),
    "reorder_with_a_loop_twice": ((), Reorder(("C_i", "C_i")), "named twice"),
    "reorder_of_loops_side_by_side": ((), Reorder(("C_i", "D_i")), "D_i is not perfectly nested in C_i"),
    "reorder_across_another_statement": (
        (DecomposeReduction("C", "C_k"),),
        Reorder(("C_k", "C_i")),
        "C_k is not perfectly nested in C_i",
    ),
    "reorder_that_runs_init_late": (
        (Fuse(("C_j", "C_k")), Split("C_j_f", (None, 4))),
        Reorder(("C_j_f_1", "C_j_f_0")),
        "the init of C would run after some of its updates",
    ),
    "reorder_that_puts_parallel_into_vectorized": (
        (Vectorize("D_j"), Parallel("D_i")),
        Reorder(("D_j", "D_i")),
        "the vectorized loop D_j would hold the parallel loop D_i",
    ),
    "fuse_of_one_loop": ((), Fuse(("C_i",)), "needs two or more loops"),
    "fuse_with_a_loop_in_between": ((), Fuse(("C_i", "C_k")), "C_k is not the whole body of C_i"),
    "fuse_from_the_inside_out": ((), Fuse(("C_j", "C_i")), "C_i is not the whole body of C_j"),
    "fuse_of_an_unrolled_loop": ((Unroll("C_j"),), Fuse(("C_i", "C_j")), "C_j is unrolled"),
    "a_name_that_is_taken": (
        (Split("C_i", (None, 4)), Fuse(("C_i_0", "C_i_1")), Split("C_i_0_f", (None, 4)), Rfactor("C", "C_k")),
        Rfactor("C", "C_k_m"),
        "there is a buffer 'C_rf' already",
    ),
    "a_kind_set_twice": ((Unroll("C_i"),), Parallel("C_i"), "C_i is unrolled already"),
    "parallel_over_a_reduce_loop": ((), Parallel("C_k"), "feeds the reduce iterator C_vk"),
    "parallel_in_parallel": ((Parallel("C_i"),), Parallel("C_j"), "nested with the parallel loop C_i"),
    "parallel_around_parallel": ((Parallel("C_j"),), Parallel("C_i"), "nested with the parallel loop C_j"),
    "parallel_in_vectorized": ((Vectorize("D_i"),), Parallel("D_j"), "D_j is inside the vectorized loop D_i"),
    "vectorized_in_vectorized": ((Vectorize("D_i"),), Vectorize("D_j"), "inside the vectorized loop D_i"),
    "vectorized_around_parallel": ((Parallel("D_j"),), Vectorize("D_i"), "would hold the parallel loop D_j"),
    "vectorized_over_a_fused_reduction": (
        (Fuse(("C_j", "C_k")),),
        Vectorize("C_j_f"),
        "C_j_f feeds the reduce iterator C_vk",
    ),
    "partition_of_a_vectorized_loop": ((Vectorize("D_j"),), LoopPartition("D_j", (2,)), "D_j is vectorized"),
    "partition_without_points": ((), LoopPartition("C_i", ()), "points must rise"),
    "partition_at_the_end": ((), LoopPartition("C_i", (8,)), "strictly between 0 and 8"),
    "partition_with_falling_points": ((), LoopPartition("C_i", (5, 3)), "points must rise"),
    "decompose_of_a_block_without_init": ((), DecomposeReduction("D", "D_i"), "D has no init"),
    "decompose_at_a_loop_elsewhere": ((), DecomposeReduction("C", "D_i"), "D_i is not around C"),
    "decompose_below_a_reduce_loop": (
        (Split("C_k", (None, 2)),),
        DecomposeReduction("C", "C_k_1"),
        "C_k_0 feeds a reduce iterator of C and is above C_k_1",
    ),
    "decompose_of_a_mixed_loop": (
        (Fuse(("C_j", "C_k")),),
        DecomposeReduction("C", "C_j_f"),
        "C_j_f feeds both spatial and reduce iterators of C",
    ),
    "rfactor_of_a_spatial_loop": ((), Rfactor("C", "C_i"), "C_i feeds no reduce iterator of C"),
    "rfactor_at_a_loop_elsewhere": ((), Rfactor("C", "D_i"), "D_i is not around C"),
    "rfactor_of_an_unrolled_loop": ((Unroll("C_k"),), Rfactor("C", "C_k"), "C_k is unrolled"),
    "rfactor_of_a_mixed_loop": (
        (Fuse(("C_j", "C_k")),),
        Rfactor("C", "C_j_f"),
        "feeds both spatial and reduce",
    ),
    "rfactor_of_what_is_no_reduction": ((), Rfactor("D", "D_i"), "D_i feeds no reduce iterator of D"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    before, step, message = CASES[name]
    assert message in refused(step, *before).message


# --------------------------------------------------------------------------------- programs that builders do not make


def test_parallel_over_a_recurrence() -> None:
    func = parse_func("""
@func
def scan(X: f32[9], H: out(f32[9])):
    for t in range(8):
        with block("H"):
            vt = spatial(8, t)
            H[vt + 1] = H[vt] + X[vt]
""")
    e = refused(Parallel("t"), func=func)
    assert "H uses elements of H that H writes in another iteration" in e.message


def test_reorder_of_a_recurrence() -> None:
    func = parse_func("""
@func
def scan(X: f32[9, 9], H: out(f32[9, 9])):
    for t in range(8):
        for s in range(8):
            with block("H"):
                vt = spatial(8, t)
                vs = spatial(8, s)
                H[vt + 1, vs] = H[vt, vs + 1] + X[vt, vs]
""")
    assert "writes in another iteration" in refused(Reorder(("s", "t")), func=func).message


def test_parallel_where_iterations_write_one_element() -> None:
    func = parse_func("""
@func
def f(X: f32[8], Y: out(f32[4])):
    for i in range(8):
        with block("Y"):
            vi = spatial(8, i)
            Y[vi // 2] = X[vi]
""")
    assert "Y uses elements of Y that Y writes" in refused(Parallel("i"), func=func).message


def test_rfactor_of_an_update_that_is_no_combination() -> None:
    func = parse_func("""
@func
def f(X: f32[8], Y: out(f32[1])):
    for k in range(8):
        with block("Y"):
            v = spatial(1, 0)
            vk = reduce(8, k)
            with init():
                Y[v] = f32(0.0)
            Y[v] = (Y[v] * f32(2.0)) + X[vk]
""")
    assert "is not one update" in refused(Rfactor("Y", "k"), func=func).message


REPEATED = """
@func
def f(X: f32[8, 4], Y: out(f32[8, 3])):
    S = alloc(f32[8])
    for i in range(8):
        for r in range(3):
            for k in range(4):
                with block("S"):
                    vi = spatial(8, i)
                    vk = reduce(4, k)
                    with init():
                        S[vi] = f32(0.0)
                    S[vi] = S[vi] + X[vi, vk]
    for y in range(8):
        for z in range(3):
            with block("Y"):
                vy = spatial(8, y)
                vz = spatial(3, z)
                Y[vy, vz] = S[vy]
"""


def test_reorder_into_a_loop_that_repeats_the_reduction() -> None:
    e = refused(Reorder(("k", "r")), func=parse_func(REPEATED))
    assert "the init of S would run after some of its updates" in e.message


def test_decompose_around_a_loop_that_repeats_the_reduction() -> None:
    e = refused(DecomposeReduction("S", "r"), func=parse_func(REPEATED))
    assert "r runs updates of the same elements again" in e.message


def test_rfactor_under_a_loop_where_the_result_is_used_too_early() -> None:
    func = parse_func("""
@func
def f(X: f32[8, 4], Y: out(f32[8]), Z: out(f32[8, 4])):
    for k in range(4):
        for i in range(8):
            with block("Y"):
                vi = spatial(8, i)
                vk = reduce(4, k)
                with init():
                    Y[vi] = f32(0.0)
                Y[vi] = Y[vi] + X[vi, vk]
        for j in range(8):
            with block("Z"):
                vj = spatial(8, j)
                vl = spatial(4, k)
                Z[vj, vl] = Y[vj]
""")
    assert (
        "Z uses Y inside k, before the reduction is complete" in refused(Rfactor("Y", "k"), func=func).message
    )


SUMS = """
@func
def sums(A: f32[4, 6], S: out(f32[4])):
    for n in range(2):
        for i in range(4):
            for k in range(6):
                with block("S"):
                    vi = spatial(4, i)
                    vk = reduce(6, k)
                    with init():
                        S[vi] = 0
                    S[vi] = S[vi] + A[vi, vk]
"""


def test_a_loop_where_a_block_is_meant() -> None:
    e = refused(DecomposeReduction("C_i", "C_k"))
    assert "gemm has no block 'C_i'" in e.message
    assert e.hint == "its blocks are: C, D"


def test_decompose_of_a_reduction_that_runs_backwards() -> None:
    func = parse_func(SUMS.replace("reduce(6, k)", "reduce(6, 5 - k)"))
    e = refused(DecomposeReduction("S", "k"), func=func)
    assert "the reduce iterators of S are not all 0 where its loops are" in e.message


def test_rfactor_under_a_condition_on_both_kinds_of_loop() -> None:
    func = parse_func(SUMS.replace("with init", "where(i + k < 7)\n                    with init"))
    assert (
        "the predicate of S mixes spatial and reduce loops" in refused(Rfactor("S", "k"), func=func).message
    )


def test_rfactor_under_a_condition_on_a_loop_that_repeats_it() -> None:
    func = parse_func(SUMS.replace("with init", "where(0 < n)\n                    with init"))
    e = refused(Rfactor("S", "k"), func=func)
    assert "the predicate of S is over loops that feed none of its iterators" in e.message
