"""Annotations and thread axes in the IR: text, digest, rules, meaning; and that steps on other things keep them."""

from dataclasses import replace

import numpy as np
import pytest
from native import run_native
from schedule_programs import matmul, run

from tilewright.codegen.kernel import kernel_ir
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.find import find_block, find_loop
from tilewright.schedule.steps import DecomposeReduction, Distribute, Parallel, Reorder, Split
from tilewright.schedule.trace import replay
from tilewright.support.errors import InternalError, UserError
from tilewright.tir.compare import same_func
from tilewright.tir.digest import func_digest
from tilewright.tir.func import Func, single
from tilewright.tir.parser import parse_func
from tilewright.tir.printer import print_func, print_head
from tilewright.tir.stmt import Annotations, LoopKind, loops
from tilewright.tir.verify import verify_func

NOTES: Annotations = (("a.b", -1.5), ("class", "x"), ("cost", 3), ("done", True), ("note", 'say "hi"'))


def annotated(loop: Annotations = (), block: Annotations = ()) -> Func:
    func = matmul()
    at = find_loop(func, "C_j")
    func = replace_stmt(func, at, replace(at, annotations=loop))
    b = find_block(func, "C")
    return replace_stmt(func, b, replace(b, annotations=block))


def on_axes(**kinds: LoopKind) -> Func:
    func = matmul(m=8, n=4, k=2, relu=True)
    for name, kind in kinds.items():
        at = find_loop(func, name)
        func = replace_stmt(func, at, replace(at, kind=kind))
    return func


# ------------------------------------------------------------------------------------------------- annotations


def test_annotations_print_as_arguments() -> None:
    func = annotated(NOTES, (("note", "b"),))
    text = print_func(func)
    assert (
        r'for C_j in range(6, cost=3, done=True, note="say \"hi\"", **{"a.b": -1.5, "class": "x"}):' in text
    )
    assert 'with block("C", note="b"):' in text
    assert print_head(find_block(func, "C")) == 'with block("C", note="b"):'


def test_annotations_read_back_with_their_types() -> None:
    func = annotated(NOTES, (("n", 1),))
    back = parse_func(print_func(func))
    assert same_func(back, func)
    assert [type(v) for _, v in find_loop(back, "C_j").annotations] == [float, str, int, bool, str]


def test_annotations_are_part_of_the_digest() -> None:
    notes: list[Annotations] = [(), (("a", 1),), (("a", 1.0),), (("a", True),), (("a", "1"),), (("b", 1),)]
    assert len({func_digest(annotated(n)) for n in notes}) == len(notes)
    assert len({func_digest(annotated((), n)) for n in notes}) == len(notes)


def test_annotations_have_no_effect() -> None:
    plain, func = matmul(), annotated(NOTES, NOTES)
    verify_func(func)
    np.testing.assert_array_equal(run(func)[0], run(plain)[0])
    x, y = np.arange(35, dtype=np.int32).reshape(7, 5), np.arange(30, dtype=np.int32).reshape(5, 6)
    np.testing.assert_array_equal(run_native(func, (x, y))[0], x @ y)


def test_steps_keep_annotations_of_loops_that_stay() -> None:
    trace = (Split("C_i", (None, 2)), Reorder(("C_j", "C_i_0")), Parallel("C_j"))
    func = replay(single(annotated(NOTES, NOTES)), trace).funcs[0]
    assert find_loop(func, "C_j").annotations == NOTES
    assert find_block(func, "C").annotations == NOTES
    assert find_loop(func, "C_i_0").annotations == ()


def test_copies_of_a_loop_have_its_annotations() -> None:
    trace = (DecomposeReduction("C", "C_j"), Distribute("C_i"))
    func = replay(single(annotated(NOTES)), trace).funcs[0]
    assert {n.var.name for n in loops(func.body) if n.annotations} == {"C_j", "C_j_init"}


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ((("b", 1), ("a", 2)), "not sorted by different keys"),
        ((("a", 1), ("a", 2)), "not sorted by different keys"),
        ((("", 1),), "not sorted by different keys"),
        ((("a", float("inf")),), "which text does not show"),
    ],
)
def test_annotations_that_are_against_the_rules(notes: Annotations, message: str) -> None:
    for func in (annotated(notes), annotated((), notes)):
        with pytest.raises(InternalError, match=message):
            verify_func(func)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("a=[1]", "a string, a number, True or False"),
        ("a=-True", "a string, a number, True or False"),
        ("**words", r"\*\*\{\"key\": value\}"),
        ("**{3: 1}", "annotations are key=value"),
        ('a=1, **{"a": 2}', "each key once"),
    ],
)
def test_annotations_that_cannot_be_read(notes: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_func(f"@func\ndef f(A: out(f32[8])):\n    for i in range(8, {notes}):\n        A[i] = 1\n")


# ------------------------------------------------------------------------------------------------- thread axes


def test_thread_axes_print_and_read_back() -> None:
    func = on_axes(C_i=LoopKind.BLOCK_X, C_j=LoopKind.THREAD_X, D_i=LoopKind.VTHREAD)
    text = print_func(func)
    assert "for C_i in block_x(8):" in text and "for C_j in thread_x(4):" in text
    assert same_func(parse_func(text), func)
    verify_func(func)


def test_thread_axes_are_interpreted() -> None:
    plain, func = on_axes(), on_axes(C_i=LoopKind.BLOCK_X, C_j=LoopKind.THREAD_X, D_i=LoopKind.BLOCK_Y)
    np.testing.assert_array_equal(run(func)[0], run(plain)[0])


def test_there_is_no_code_for_thread_axes() -> None:
    with pytest.raises(UserError, match="no code generator for GPU thread axes; C_i is on block_x") as e:
        kernel_ir(on_axes(C_i=LoopKind.BLOCK_X))
    assert "for C_i in block_x(8):" in str(e.value)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((("thread_x", 4), ("thread_x", 4)), "j on thread_x is inside i on the same axis"),
        ((("thread_x", 1025),), "i has 1025 iterations, and thread_x has room for 1024"),
        ((("thread_z", 65),), "thread_z has room for 64"),
        ((("block_z", 65536),), "block_z has room for 65535"),
        ((("vthread", 9),), "vthread has room for 8"),
        ((("thread_x", 64), ("thread_y", 32)), "a block would have 2048 threads"),
        ((("parallel", 4), ("block_x", 4)), "j on block_x is inside the parallel loop i"),
        ((("vectorized", 4), ("thread_x", 4)), "j on thread_x is inside the vectorized loop i"),
        ((("block_x", 4), ("parallel", 4)), "i on block_x holds the parallel loop j"),
    ],
)
def test_loops_that_do_not_fit_a_launch(axes: tuple[tuple[str, int], ...], message: str) -> None:
    sizes = [n for _, n in axes] + [1] * (2 - len(axes))
    kinds = [k for k, _ in axes] + ["range"] * (2 - len(axes))
    text = (
        f"@func\ndef f(A: out(f32[{sizes[0]}, {sizes[1]}])):\n    for i in {kinds[0]}({sizes[0]}):\n"
        f"        for j in {kinds[1]}({sizes[1]}):\n            A[i, j] = 1\n"
    )
    with pytest.raises(InternalError, match=message):
        verify_func(parse_func(text))


def test_loops_of_a_launch_that_disagree() -> None:
    text = (
        "@func\ndef f(A: out(f32[2, 4]), B: out(f32[2, 8])):\n    for b in block_x(2):\n"
        "        for i in thread_x(4):\n            A[b, i] = 1\n"
        "        for j in thread_x(8):\n            B[b, j] = 1\n"
    )
    with pytest.raises(InternalError, match="j has 8 iterations on thread_x, and i has 4 in the same launch"):
        verify_func(parse_func(text))
    apart = text.replace("        for j", "    for c in block_x(2):\n        for j").replace("B[b", "B[c")
    verify_func(parse_func(apart))
    verify_func(parse_func(text.replace("thread_x", "vthread")))  # vthreads are each thread's own


def test_iterations_on_an_axis_that_race() -> None:
    text = "@func\ndef f(A: out(f32[1])):\n    for i in thread_x(4):\n        A[0] = 1\n"
    with pytest.raises(InternalError, match="all iterations of the thread_x loop i store to the same"):
        verify_func(parse_func(text))
