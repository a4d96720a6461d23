"""Annotations and thread axes that are refused: one test per mistake."""

import pytest
from test_steps_loops_errors import gemm, refused

from tilewright.schedule.step import Step
from tilewright.schedule.steps import (
    Annotate,
    Bind,
    Fuse,
    FuseIters,
    LoopPartition,
    Parallel,
    Reorder,
    ReverseComputeAt,
    Split,
    Unroll,
    Vectorize,
)
from tilewright.schedule.trace import Trace
from tilewright.tir.parser import parse_func

MARK = Annotate("C_j", "note", 1)
CASES: dict[str, tuple[Trace, Step, str]] = {
    "annotation_of_nothing": ((), Annotate("X", "note", 1), "no loop or block is named 'X'"),
    "annotation_without_a_key": ((), Annotate("C_i", "", 1), "the key is empty"),
    "annotation_removed_that_is_not_there": ((), Annotate("C", "note", None), "C has no annotation 'note'"),
    "annotation_that_is_infinite": ((), Annotate("C", "note", float("inf")), "no string, bool or finite"),
    "split_of_an_annotated_loop": ((MARK,), Split("C_j", (None, 2)), "C_j has the annotation 'note'"),
    "fuse_of_an_annotated_loop": ((MARK,), Fuse(("C_i", "C_j")), "C_j has the annotation 'note'"),
    "partition_of_an_annotated_loop": ((MARK,), LoopPartition("C_j", (2,)), "C_j has the annotation 'note'"),
    "fuse_iters_under_an_annotated_loop": (
        (MARK,),
        FuseIters("C", ("C_vi", "C_vj")),
        "not alone under plain loops",
    ),
    "bind_to_no_axis": ((), Bind("C_i", "threadIdx.x"), "there is no thread axis 'threadIdx.x'"),
    "bind_of_a_reduce_loop": ((), Bind("C_k", "thread_x"), "C_k feeds the reduce iterator C_vk of C"),
    "bind_of_a_loop_with_a_kind": ((Unroll("C_i"),), Bind("C_i", "block_x"), "C_i is unrolled already"),
    "bind_twice": ((Bind("C_i", "block_x"),), Bind("C_i", "block_y"), "C_i is block_x already"),
    "bind_two_nested_loops_to_one_axis": (
        (Bind("C_i", "thread_x"),),
        Bind("C_j", "thread_x"),
        "C_j on thread_x is inside C_i on the same axis",
    ),
    "bind_with_another_extent": (
        (ReverseComputeAt("D", "C_i"), Split("C_j", (None, 2)), Bind("D_1", "thread_x")),
        Bind("C_j_0", "thread_x"),
        "D_1 has 4 iterations on thread_x, and C_j_0 has 2 in the same launch",
    ),
    "bind_of_a_long_loop": ((Fuse(("C_i", "C_j")),), Bind("C_i_f", "vthread"), "vthread has room for 8"),
    "bind_inside_parallel": (
        (Parallel("C_i"),),
        Bind("C_j", "thread_x"),
        "C_j on thread_x is inside the parallel loop C_i",
    ),
    "bind_around_parallel": (
        (Parallel("C_j"),),
        Bind("C_i", "block_x"),
        "C_i on block_x holds the parallel loop C_j",
    ),
    "bind_inside_vectorized": (
        (Vectorize("D_i"),),
        Bind("D_j", "thread_x"),
        "D_j on thread_x is inside the vectorized loop D_i",
    ),
    "parallel_around_bound": (
        (Bind("C_j", "thread_x"),),
        Parallel("C_i"),
        "nested with the thread_x loop C_j",
    ),
    "vectorized_around_bound": (
        (Bind("D_j", "thread_x"),),
        Vectorize("D_i"),
        "would hold the thread_x loop D_j",
    ),
    "split_of_a_bound_loop": ((Bind("C_i", "block_x"),), Split("C_i", (None, 2)), "C_i is block_x"),
    "fuse_of_a_bound_loop": ((Bind("C_i", "block_x"),), Fuse(("C_i", "C_j")), "C_i is block_x"),
    "reorder_that_puts_bound_into_vectorized": (
        (Vectorize("D_j"), Bind("D_i", "block_x")),
        Reorder(("D_j", "D_i")),
        "the vectorized loop D_j would hold the block_x loop D_i",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    before, step, message = CASES[name]
    e = refused(step, *before)
    assert message in e.message


def test_a_block_of_too_many_threads() -> None:
    func = parse_func("""
@func
def f(A: out(f32[64, 32])):
    for i in range(64):
        for j in range(32):
            with block("A"):
                vi = spatial(64, i)
                vj = spatial(32, j)
                A[vi, vj] = 1
""")
    e = refused(Bind("j", "thread_y"), Bind("i", "thread_x"), func=func)
    assert "a block would have 2048 threads" in e.message


def test_iterations_that_depend_on_each_other() -> None:
    func = parse_func("""
@func
def f(A: out(f32[9])):
    for i in range(8):
        with block("A"):
            v = spatial(8, i)
            A[v + 1] = A[v]
""")
    assert "iterations of i are not independent" in refused(Bind("i", "thread_x"), func=func).message


def test_a_loop_and_a_block_of_one_name() -> None:
    func = parse_func("""
@func
def f(A: out(f32[8])):
    for A_ in range(8):
        with block("A_"):
            v = spatial(8, A_)
            A[v] = 1
""")
    assert "both a loop and a block 'A_'" in refused(Annotate("A_", "note", 1), func=func).message


def test_an_annotation_of_another_type() -> None:
    e = refused(Annotate("C", "note", (1, 2)))  # pyright: ignore[reportArgumentType]
    assert "(1, 2) is no string, bool or finite number" in e.message


def test_the_hint_says_how_to_split_an_annotated_loop() -> None:
    hint = refused(Split("C_j", (None, 2)), MARK, func=gemm()).hint
    assert hint is not None and "Annotate('C_j', 'note', None)" in hint
