"""One test per mistake that an op refuses, named after the mistake."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ops.contrib.training import Adam, Momentum
from tilewright.ops.core.activation import Clip, ClipBound, Gelu, PRelu
from tilewright.ops.core.arithmetic import Add, Pow
from tilewright.ops.core.attention_cache import TensorScatter
from tilewright.ops.core.bits import BitShift
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.constant import Fill, Range
from tilewright.ops.core.contraction import Gemm, MatMul
from tilewright.ops.core.conv import Conv, ConvTranspose
from tilewright.ops.core.depth import DepthToSpace
from tilewright.ops.core.dropout import Dropout
from tilewright.ops.core.einsum import Einsum
from tilewright.ops.core.gather import Gather
from tilewright.ops.core.integer import MatMulInteger
from tilewright.ops.core.logic import Where
from tilewright.ops.core.lrn import LRN
from tilewright.ops.core.movement import Expand, Reshape, Transpose
from tilewright.ops.core.norm import BatchNormalization, GroupNormalization, LayerNormalization
from tilewright.ops.core.norm_lp import LpNormalization
from tilewright.ops.core.pieces import Concat, Pad, Slice, Split, Tile
from tilewright.ops.core.pool import MaxPool
from tilewright.ops.core.quantize import QuantizeLinear
from tilewright.ops.core.reduce import ReduceMean
from tilewright.ops.core.resize import Resize
from tilewright.ops.core.softmax import Hardmax, Softmax
from tilewright.ops.core.window import Window
from tilewright.ops.host.cast import CastOnHost
from tilewright.ops.host.determinant import Det
from tilewright.ops.host.random import Multinomial
from tilewright.ops.opdef import OnHost, OnnxNode, Op, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


WINDOW = Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0))

MISFITS: dict[str, tuple[Op, Sequence[TensorType], str]] = {
    "shapes_do_not_broadcast": (
        Add(),
        [f32(2, 3), f32(4)],
        r"Add of f32\[2, 3\], f32\[4\]: the shapes do not broadcast",
    ),
    "element_types_differ": (Add(), [f32(2), i64(2)], r"Add of f32\[2\], i64\[2\]: element types differ"),
    "type_not_defined": (Gelu(), [i64(2)], r"Gelu of i64\[2\]: not defined for i64"),
    "too_few_inputs": (Add(), [f32(2)], r"Add of f32\[2\]: takes 2 inputs"),
    "exponent_given_twice": (Pow(2.0), [f32(2), f32(2)], "either an attribute or an input"),
    "bounds_of_several_elements": (Clip(ClipBound.INPUT), [f32(2), f32(2)], "the bounds must be scalars"),
    "bit_shift_of_floats": (BitShift(), [f32(2), f32(2)], "not defined for f32"),
    "normalisation_without_channels": (LRN(3), [f32(2)], "has no channels"),
    "hardmax_of_integers": (Hardmax((0,)), [i64(2)], "only floats"),
    "gradient_of_another_shape": (
        Momentum(0.9, 0.1, 0.0),
        [f32(), i64(), f32(2), f32(3), f32(2)],
        "weights, gradients and statistics",
    ),
    "step_that_is_no_integer": (Momentum(0.9, 0.1, 0.0), [f32(), f32(), *[f32(2)] * 3], "the step one i64"),
    "too_few_statistics": (
        Adam(0.9, 0.99, 0.0, 0.0, 0.0),
        [f32(), i64(), *[f32(2)] * 3],
        "4 tensors for each",
    ),
    "slope_larger_than_x": (PRelu(), [f32(2), f32(3, 2)], "slope must broadcast"),
    "condition_not_bool": (Where(), [f32(2), f32(2), f32(2)], "condition must be bool"),
    "inner_extents_differ": (
        MatMul(),
        [f32(2, 3), f32(4, 5)],
        r"MatMul of f32\[2, 3\], f32\[4, 5\]: the inner extents",
    ),
    "batch_axes_differ": (MatMul(), [f32(2, 2, 3), f32(3, 3, 5)], "batch axes do not broadcast"),
    "matmul_of_scalar": (MatMul(), [f32(), f32(3)], "a scalar is not a matrix"),
    "gemm_of_batches": (Gemm(), [f32(1, 2, 3), f32(3, 2)], "must be matrices"),
    "gemm_transposed_misfit": (Gemm(trans_b=True), [f32(2, 3), f32(3, 2)], "inner extents 3 and 2 differ"),
    "gemm_bias_misfit": (Gemm(), [f32(2, 3), f32(3, 2), f32(3)], r"C does not broadcast to \[2, 2\]"),
    "channels_do_not_fit_groups": (Conv(WINDOW, 2), [f32(1, 3, 5, 5), f32(2, 2, 3, 3)], "do not fit 2 group"),
    "kernel_other_than_window": (Conv(WINDOW), [f32(1, 3, 5, 5), f32(2, 3, 1, 1)], r"the window is \[3, 3\]"),
    "bias_of_wrong_size": (Conv(WINDOW), [f32(1, 3, 5, 5), f32(2, 3, 3, 3), f32(3)], "bias must have 2"),
    "input_smaller_than_window": (
        Conv(WINDOW),
        [f32(1, 3, 1, 2), f32(2, 3, 3, 3)],
        "smaller than the window",
    ),
    "pool_of_an_input_smaller_than_window": (MaxPool(WINDOW), [f32(1, 3, 2, 2)], "smaller than the window"),
    "pool_rank": (MaxPool(WINDOW), [f32(1, 3, 9)], r"the window is \[3, 3\]"),
    "not_a_permutation": (Transpose((0, 0)), [f32(2, 3)], r"\[0, 0\] is not a permutation"),
    "reshape_to_other_size": (Reshape((5,)), [f32(2, 3)], r"has 6 elements, but \[5\] has 5"),
    "expand_to_smaller": (Expand((1, 3)), [f32(2, 3)], "does not broadcast to"),
    "concat_extents_differ": (Concat(0), [f32(2, 3), f32(2, 4)], "all extents but that of axis 0"),
    "split_does_not_add_up": (Split(0, (1, 2)), [f32(4)], r"pieces \[1, 2\] do not make up axis 0"),
    "slice_out_of_range": (Slice((1,), (1,), (4,)), [f32(4)], "elements 1 to 4 of an axis of 4"),
    "pad_cuts_too_much": (Pad((-3,), (-2,)), [f32(4)], "more is cut off than there is"),
    "reflect_too_far": (Pad((4,), (0,), "reflect"), [f32(4)], "cannot be mirrored"),
    "tile_rank": (Tile((2,)), [f32(2, 2)], "cannot be repeated"),
    "gather_index_is_float": (Gather(0), [f32(2), f32(2)], "indices must be i32 or i64"),
    "gather_of_empty_axis": (Gather(0), [f32(0, 2), i64(1)], "axis 0 is empty"),
    "no_such_axis": (ReduceMean((2,)), [f32(2, 2)], r"has no axes \[2\]"),
    "softmax_of_integers": (Softmax((0,)), [i64(2)], "only floats"),
    "layer_norm_scale": (LayerNormalization(1), [f32(2, 3), f32(2)], "scale and bias must broadcast"),
    "group_norm_groups": (GroupNormalization(2), [f32(1, 3, 2), f32(3), f32(3)], "do not make 2 groups"),
    "batch_norm_channels": (BatchNormalization(), [f32(1, 3, 2), *[f32(2)] * 4], "one element per channel"),
}


@pytest.mark.parametrize(("op", "inputs", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_infer_refuses(op: Op, inputs: Sequence[TensorType], message: str) -> None:
    with pytest.raises(UserError, match=message):
        op.infer(inputs)


def test_shape_computed_at_run_time() -> None:
    with pytest.raises(UserError, match=r"shape \(input 1\) is computed at run time"):
        Reshape.sample(zeros(4), ints(2, 2), runtime=(1,))


def test_two_unknown_extents() -> None:
    with pytest.raises(UserError, match=r"Reshape of f32\[4\] to \[-1, -1\]: the shape does not fit"):
        Reshape.sample(zeros(4), ints(-1, -1))


def test_zero_copies_an_axis_that_is_not_there() -> None:
    with pytest.raises(UserError, match="an axis that the input does not have"):
        Reshape.sample(zeros(4), ints(4, 0))


def test_squeeze_of_a_wide_axis() -> None:
    with pytest.raises(UserError, match="extent other than 1"):
        Reshape.sample(zeros(4, 1), ints(0), op_type="Squeeze")


def test_axis_given_twice() -> None:
    with pytest.raises(UserError, match="given twice"):
        ReduceMean.sample(zeros(2, 2), ints(0, -2))


def test_axis_out_of_range() -> None:
    with pytest.raises(UserError, match="axis 2 is out of range for 2 axes"):
        Softmax.sample(zeros(2, 2), axis=2)


def test_dropout_in_training_mode_is_left_to_the_host() -> None:
    with pytest.raises(OnHost, match="drawn at random"):
        Dropout.sample(zeros(2), np.float32(0.5), np.asarray(True))


def test_statistics_of_batch_normalization_outside_of_training() -> None:
    with pytest.raises(UserError, match="outside of training"):
        BatchNormalization.sample(zeros(1, 2), *[zeros(2)] * 4, outputs=3)


def test_lp_normalization_by_the_third_power() -> None:
    with pytest.raises(UserError, match="p = 3 is neither 1 nor 2"):
        LpNormalization.sample(zeros(2), p=3)


def test_layer_normalization_that_stashes_integers() -> None:
    with pytest.raises(UserError, match="stash_type 7 is no float type"):
        LayerNormalization.sample(zeros(2), zeros(2), stash_type=7)


def test_a_cache_update_that_is_neither_linear_nor_circular() -> None:
    with pytest.raises(UserError, match="neither 'linear' nor 'circular'"):
        TensorScatter.sample(zeros(1, 4, 2), zeros(1, 2, 2), mode="spiral")


def test_pool_without_kernel() -> None:
    with pytest.raises(UserError, match="no kernel_shape"):
        MaxPool.sample(zeros(1, 1, 4))


def test_unknown_auto_pad() -> None:
    with pytest.raises(UserError, match="unknown auto_pad 'SOMEHOW'"):
        Conv.sample(zeros(1, 1, 4), zeros(1, 1, 2), auto_pad="SOMEHOW")


def test_strides_for_other_axes() -> None:
    with pytest.raises(UserError, match="do not match"):
        Conv.sample(zeros(1, 1, 4), zeros(1, 1, 2), strides=[1, 1])


def test_stride_of_zero() -> None:
    with pytest.raises(UserError, match="must be positive"):
        Conv.sample(zeros(1, 1, 4), zeros(1, 1, 2), strides=[0])


def test_convolution_of_too_many_axes() -> None:
    with pytest.raises(UserError, match="1 to 3 spatial axes"):
        Conv.sample(zeros(1, 1, 2, 2, 2, 2), zeros(1, 1, 1, 1, 1, 1))


def test_kernel_shape_other_than_the_weights() -> None:
    with pytest.raises(UserError, match="not that of the weights"):
        Conv.sample(zeros(1, 1, 4), zeros(1, 1, 2), kernel_shape=[3])


def test_clip_with_several_lower_bounds() -> None:
    with pytest.raises(UserError, match="a bound of 2 elements"):
        Clip.sample(zeros(2), zeros(2))


def test_bit_shift_without_direction() -> None:
    with pytest.raises(UserError, match="neither 'LEFT' nor 'RIGHT'"):
        BitShift.sample(ints(1).astype(np.uint8), ints(1).astype(np.uint8), direction="UP")


def test_normalisation_over_no_channels() -> None:
    with pytest.raises(UserError, match="a window of 0 channels"):
        LRN.sample(zeros(1, 2, 2, 2), size=0)


def test_momentum_of_unknown_mode() -> None:
    with pytest.raises(UserError, match="neither 'standard' nor 'nesterov'"):
        Momentum.sample(zeros(), ints(0), zeros(2), zeros(2), zeros(2), mode="heavy")


def test_determinant_of_a_wide_matrix() -> None:
    with pytest.raises(UserError, match="not those of a square matrix"):
        Det().run([zeros(2, 3)], {})


def test_random_classes_of_a_float_type() -> None:
    with pytest.raises(UserError, match="classes of type f32"):
        Multinomial.from_onnx(OnnxNode("Multinomial", 18, {"dtype": 1}, (), lambda _: None, 1))


def test_cast_to_a_type_without_dtype() -> None:
    with pytest.raises(OnHost, match="only the host computes with"):
        Cast.sample(zeros(2), to=8)


def test_element_type_that_onnx_does_not_have() -> None:
    with pytest.raises(UserError, match="there is no element type 99"):
        CastOnHost(99).run([zeros(2)], {})


def test_scale_that_does_not_fit() -> None:
    with pytest.raises(UserError, match=r"a scale of shape \[2\] does not fit \[4, 3\] along axis 1"):
        QuantizeLinear.sample(zeros(4, 3), zeros(2))


def test_zero_point_of_another_type() -> None:
    with pytest.raises(UserError, match="only i8 and u8, with zero points of the same type"):
        x = np.ones((2, 2), np.uint8)
        MatMulInteger((True, False)).infer([TensorType.of(v) for v in (x, x, x.astype(np.int8)[0])])


def test_gelu_of_unknown_form() -> None:
    with pytest.raises(UserError, match="neither 'none' nor 'tanh'"):
        Gelu.sample(zeros(2), approximate="fast")


def test_slice_by_step_zero() -> None:
    with pytest.raises(UserError, match="a step is 0"):
        Slice.sample(zeros(4), ints(0), ints(4), ints(0), ints(0))


def test_split_into_too_many_parts() -> None:
    with pytest.raises(UserError, match="does not divide into 4 parts"):
        Split.sample(zeros(5), outputs=4, opset=13)


def test_pad_of_unknown_mode() -> None:
    with pytest.raises(UserError, match="unknown mode 'mirror'"):
        Pad.sample(zeros(4), ints(1, 1), mode="mirror")


def test_gather_at_a_constant_out_of_range() -> None:
    with pytest.raises(UserError, match="index 4 is out of range"):
        Gather.sample(zeros(4), np.array(4, np.int64))


def test_expand_to_a_misfit() -> None:
    with pytest.raises(UserError, match=r"Expand of f32\[3\] to \[2\]"):
        Expand.sample(zeros(3), ints(2))


def test_negative_extent() -> None:
    with pytest.raises(UserError, match="negative extent"):
        Fill.sample(ints(-1))


def test_range_by_step_zero() -> None:
    with pytest.raises(UserError, match="the step is 0"):
        Range.sample(*(np.array(v, np.int64) for v in (0, 4, 0)))


def test_resize_without_scales() -> None:
    with pytest.raises(UserError, match=r"scales .* for 1 axes"):
        Resize.sample(zeros(4), None, np.ones(2, np.float32))


def test_einsum_of_too_many_axes() -> None:
    with pytest.raises(UserError, match="does not fit inputs with"):
        Einsum.sample(zeros(2, 2), zeros(2), equation="i,i->i")


def test_einsum_extents_differ() -> None:
    with pytest.raises(UserError, match="axis j of ij,jk has extents 3 and 4"):
        Einsum(("ij", "jk"), "ik").infer([f32(2, 3), f32(4, 5)])


def test_transposed_convolution_that_cuts_all() -> None:
    with pytest.raises(UserError, match="more padding is cut off than there is"):
        ConvTranspose(Window((1,), (1,), (1,), (1,), (1,))).infer([f32(1, 1, 1), f32(1, 1, 1)])


def test_depth_that_makes_no_tiles() -> None:
    with pytest.raises(UserError, match="tiles of 2 × 2"):
        DepthToSpace(2).infer([f32(1, 3, 2, 2)])
