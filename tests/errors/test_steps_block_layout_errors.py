"""Maps of a block's domain that are refused: one test per mistake."""

import pytest
from test_steps_loops_errors import refused

from tilewright.ir.layout import (
    CropDim,
    FoldDim,
    FuseDims,
    Layout,
    PadDim,
    ReorderDims,
    SplitDim,
    UnfoldDim,
)
from tilewright.schedule import steps
from tilewright.schedule.steps import Annotate, Parallel, TransformBlockLayout
from tilewright.schedule.trace import Trace
from tilewright.tir.func import single
from tilewright.tir.parser import parse_func

CASES: dict[str, tuple[Trace, Layout, str]] = {
    "a_split_that_does_not_divide": (
        (),
        Layout((SplitDim(0, 3),)),
        "3 does not divide 8, the extent of C_vi",
    ),
    "padding": ((), Layout((PadDim(0, 0, 1),)), "adds instances that the block does not have"),
    "tiles_that_overlap": ((), Layout((UnfoldDim(0, 4, 2),)), "is not one to one"),
    "cut_off": ((), Layout((CropDim(0, 0, 1),)), "is not one to one"),
    "tiles_put_together": ((), Layout((FoldDim(0, 1, 3),)), "is not one to one"),
    "a_dimension_that_is_not_there": ((), Layout((SplitDim(3, 2),)), "there is no dimension 3"),
    "a_fuse_over_the_end": ((), Layout((FuseDims(2, 2),)), "it reaches over the end"),
    "an_order_that_is_none": ((), Layout((ReorderDims((0, 1)),)), "no permutation"),
    "a_split_by_nothing": ((), Layout((SplitDim(0, 0),)), "the factor must be positive"),
    "iterators_of_two_kinds": (
        (),
        Layout((FuseDims(1, 2),)),
        "C_vj is spatial and C_vk is reduce, so the kind of the fused iterator is not clear",
    ),
    "a_block_that_was_split": (
        (steps.Split("C_i", (None, 2)),),
        Layout((FuseDims(0, 2),)),
        "not alone under plain",
    ),
    "a_parallel_loop": ((Parallel("C_i"),), Layout((FuseDims(0, 2),)), "not alone under plain loops"),
    "an_annotated_loop": (
        (Annotate("C_i", "note", 1),),
        Layout((FuseDims(0, 2),)),
        "not alone under plain loops",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    before, layout, message = CASES[name]
    assert message in refused(TransformBlockLayout("C", layout), *before).message


def test_no_such_block() -> None:
    assert "no loop or block is named 'X'" in refused(TransformBlockLayout("X", Layout(()))).message


GRID = """
@func
def grid(X: f32[5, 6], A: out(f32[5, 6])):
    for i in range(4):
        for j in range(4):
            with block("B"):
                vi = spatial(4, i)
                vj = spatial(4, j)
                A[vi, vj + 1] = A[vi + 1, vj]
"""


def test_iterations_that_must_stay_in_order() -> None:
    e = refused(TransformBlockLayout("B", Layout((ReorderDims((1, 0)),))), func=parse_func(GRID))
    assert (
        "B uses elements of A that B writes in another iteration, so its loops keep their order" in e.message
    )


def test_a_map_that_keeps_the_order_is_fine() -> None:
    TransformBlockLayout("B", Layout((FuseDims(0, 2),))).apply(single(parse_func(GRID)))


def test_a_name_that_is_taken() -> None:
    text = GRID.replace("for j in", "for i_f in").replace("spatial(4, j)", "spatial(4, i_f)")
    e = refused(TransformBlockLayout("B", Layout((FuseDims(0, 2),))), func=parse_func(text))
    assert "the new name 'i_f' is taken" in e.message
