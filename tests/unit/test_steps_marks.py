"""Steps that mark loops and blocks: annotate and bind."""

import pytest
from schedule_programs import check, check_native, matmul, outline, softmax

from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.steps import Annotate, Bind, ComputeAt, Fuse, ReverseComputeAt, Split, Vectorize
from tilewright.tir.func import single
from tilewright.tir.stmt import AnnotationValue, LoopKind


@pytest.mark.parametrize("value", ["x", 3, -0.25, True])
def test_annotate_a_loop_and_a_block(value: AnnotationValue) -> None:
    func = check_native(matmul(), Annotate("C_i", "b", value), Annotate("C", "b", 1), Annotate("C_i", "a", 1))
    assert find_loop(func, "C_i").annotations == (("a", 1), ("b", value))
    assert find_block(func, "C").annotations == (("b", 1),)


def test_an_annotation_is_replaced_and_removed() -> None:
    func = check(matmul(), Annotate("C_i", "a", 1), Annotate("C_i", "a", 2))
    assert find_loop(func, "C_i").annotations == (("a", 2),)
    func = check(matmul(), Annotate("C_i", "a", 1), Annotate("C_i", "a", None))
    assert find_loop(func, "C_i").annotations == ()


def test_an_annotated_loop_can_be_split_again_once_the_annotation_is_gone() -> None:
    check(matmul(), Annotate("C_i", "a", 1), Annotate("C_i", "a", None), Split("C_i", (None, 2)))


def test_bind_a_tiled_matmul_with_its_epilogue() -> None:
    func = check(
        matmul(m=8, n=6, relu=True),
        Split("D_i", (None, 4)),
        Fuse(("D_i_0", "D_i_1")),
        Split("D_i_0_f", (None, 4)),
        ComputeAt("C", "D_i_0_f_1"),
        Bind("D_i_0_f_0", "block_x"),
        Bind("D_i_0_f_1", "thread_y"),
        Bind("D_j", "thread_x"),
    )
    assert outline(func.body)[:2] == ["for D_i_0_f_0 in block_x(2):", "    for D_i_0_f_1 in thread_y(4):"]
    assert find_loop(func, "D_j").kind is LoopKind.THREAD_X


def test_loops_one_after_the_other_share_the_threads() -> None:
    func = check(
        softmax(8),
        ReverseComputeAt("E", "M_i"),
        Bind("M_i", "block_x"),
        Bind("E_1", "thread_x"),
        Bind("Y_k", "thread_x"),
        Bind("Y_i", "vthread"),
    )
    assert [line.strip() for line in outline(func.body) if "_x" in line and "for" in line] == [
        "for M_i in block_x(3):",
        "for E_1 in thread_x(8):",
        "for Y_k in thread_x(8):",
    ]


def test_vectors_inside_a_thread() -> None:
    check(matmul(relu=True), Bind("D_i", "thread_x"), Vectorize("D_j"))


def test_the_schedule_has_methods() -> None:
    s = Schedule(single(matmul()))
    s.bind("C_i", "block_x")
    s.annotate("C", "note", "x")
    assert str(s) == "Bind(loop='C_i', axis='block_x')\nAnnotate(target='C', key='note', value='x')\n"
