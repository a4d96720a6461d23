"""One test per mistake that ops which index refuse, named after the mistake."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ops.core.constant import Eye, Fill, FillOfAnyType
from tilewright.ops.core.depth import SpaceToDepth
from tilewright.ops.core.gather import GatherElements, GatherND, OneHot
from tilewright.ops.core.pieces import Pad
from tilewright.ops.core.reverse import ReverseSequence
from tilewright.ops.core.scan import CumSum
from tilewright.ops.core.scatter import ScatterElements, ScatterElementsOfAnyType, ScatterND
from tilewright.ops.core.suppression import BestBoxes
from tilewright.ops.core.topk import TopK
from tilewright.ops.hostop import HostOp, HostValue
from tilewright.ops.opdef import Op, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def places(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


MISFITS: dict[str, tuple[Op, Sequence[TensorType], str]] = {
    "float_places": (ScatterND(), [f32(4), f32(1, 1), f32(1)], "indices must be i32 or i64"),
    "updates_of_another_type": (ScatterND(), [f32(4), i64(1, 1), i64(1)], "updates must have the type"),
    "places_on_too_many_axes": (ScatterND(), [f32(4), i64(1, 2), f32(1)], "places on 2 axes"),
    "slices_of_another_shape": (ScatterND(), [f32(4, 3), i64(5, 1), f32(5, 2)], r"the shape \[5, 3\]"),
    "updates_of_nothing": (ScatterND(), [f32(0), i64(1, 1), f32(1)], "but no elements"),
    "places_and_updates_differ": (
        ScatterElements(0),
        [f32(4), i64(2), f32(3)],
        "indices and updates differ in shape",
    ),
    "updates_beyond_an_axis": (
        ScatterElements(0),
        [f32(4, 2), i64(1, 3), f32(1, 3)],
        "more updates than elements on an axis",
    ),
    "batches_that_differ": (GatherND(1), [f32(2, 3), i64(3, 1)], "no 1 axes that both share"),
    "no_places": (GatherND(), [f32(2, 3), i64(3, 0)], "places on 0 axes"),
    "element_of_an_empty_axis": (GatherElements(0), [f32(0), i64(1)], "that is not empty"),
    "one_hot_of_three_values": (OneHot(0, 3), [i64(2), f32(3)], "two values are needed"),
    "more_than_there_are": (TopK(0, 5), [f32(4)], "has no 5 elements on axis 0"),
    "best_of_bools": (TopK(0, 1), [TensorType(DType.BOOL, (4,))], "not defined for bool"),
    "boxes_of_three_sides": (
        BestBoxes(5),
        [f32(1, 5, 3), f32(1, 1, 5), i64(1), f32(1)],
        "takes boxes of four numbers",
    ),
    "scores_of_other_boxes": (
        BestBoxes(5),
        [f32(1, 5, 4), f32(1, 1, 6), i64(1), f32(1)],
        "the scores are not those of the boxes",
    ),
    "scores_of_integers": (BestBoxes(5), [f32(1, 5, 4), i64(1, 1, 5), i64(1), f32(1)], "takes f32"),
    "room_for_more_boxes": (BestBoxes(6), [f32(1, 5, 4), f32(1, 1, 5), i64(1), f32(1)], "has room for"),
    "no_overlap": (BestBoxes(5), [f32(1, 5, 4), f32(1, 1, 5), i64(1)], "one or two thresholds"),
    "one_axis_for_batch_and_time": (ReverseSequence(0, 0), [f32(2, 3), i64(2)], "are not two of its axes"),
    "a_length_too_few": (ReverseSequence(0, 1), [f32(2, 3), i64(1)], "length for each place on axis 0"),
    "sum_of_bools": (CumSum(0), [TensorType(DType.BOOL, (4,))], "needs numbers"),
    "diagonal_of_a_cube": (Eye((2, 2, 2), 0, DType.F32), [], "not the shape of a matrix"),
    "mirror_of_what_is_cut_off": (
        Pad((-2,), (2,), "reflect"),
        [f32(4)],
        "cannot be mirrored on an axis of 2",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_inputs_do_not_fit(name: str) -> None:
    op, inputs, message = MISFITS[name]
    with pytest.raises(UserError, match=message):
        op.infer(inputs)


def test_reduction_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="ScatterND: unknown reduction 'sub'"):
        ScatterND.sample(zeros(4), places(1, 1), zeros(1), reduction="sub")


def test_order_of_channels_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="SpaceToDepth: unknown mode 'RCD'"):
        SpaceToDepth.sample(zeros(1, 1, 2, 2), blocksize=2, mode="RCD")


def test_two_values_to_fill_with() -> None:
    with pytest.raises(UserError, match="2 values are given"):
        Fill.sample(np.array([3], np.int64), value=zeros(2))


HOST: dict[str, tuple[HostOp, Sequence[HostValue], str]] = {
    "no_room": (FillOfAnyType(zeros(1)), [np.array([1 << 40, 1 << 40])], "that there is room for"),
    "negative_extent": (FillOfAnyType(zeros(1)), [np.array([-1])], "that there is room for"),
    "update_of_nothing": (
        ScatterElementsOfAnyType(0),
        [np.zeros(0, object), places(1), np.array(["a"], object)],
        "but no elements",
    ),
}


@pytest.mark.parametrize("name", HOST)
def test_the_host_refuses(name: str) -> None:
    op, inputs, message = HOST[name]
    with pytest.raises(UserError, match=message):
        op.run(inputs, {})
