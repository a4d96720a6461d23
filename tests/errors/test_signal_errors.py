"""Refusals of the ops that resize, sample, pool and transform."""

import numpy as np
import pytest

from tilewright.ops.core.col2im import Col2Im
from tilewright.ops.core.deform import DeformConv
from tilewright.ops.core.dft import DFT, STFT, Transform
from tilewright.ops.core.grid_sample import GridSample
from tilewright.ops.core.lp_pool import LpPool
from tilewright.ops.core.resize import Resize
from tilewright.ops.core.roi import RoiAlign
from tilewright.ops.core.taps import Edge, ResamplingKernel
from tilewright.ops.host.image import ImageDecoder
from tilewright.ops.opdef import TensorType
from tilewright.support.errors import UserError


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_antialias_of_nearest() -> None:
    with pytest.raises(UserError, match="antialias needs mode linear or cubic"):
        Resize.sample(zeros(1, 1, 4, 4), None, np.ones(4, np.float32), mode="nearest", antialias=1)


def test_resize_with_unknown_policy() -> None:
    with pytest.raises(UserError, match="unknown keep_aspect_ratio_policy 'wider'"):
        Resize.sample(zeros(4), None, None, np.array([2]), keep_aspect_ratio_policy="wider")


def test_resize_to_a_region_that_is_infinite() -> None:
    with pytest.raises(UserError, match="the region"):
        Resize.sample(
            zeros(4),
            np.array([0, np.inf], np.float32),
            np.ones(1, np.float32),
            coordinate_transformation_mode="tf_crop_and_resize",
        )


def test_resize_with_places_too_far_apart() -> None:
    with pytest.raises(UserError, match="too far for index arithmetic"):
        Resize.sample(
            zeros(4),
            np.array([-1e38, 1e38], np.float32),
            np.ones(1, np.float32),
            coordinate_transformation_mode="tf_crop_and_resize",
        )


def test_region_with_too_many_samples() -> None:
    with pytest.raises(UserError, match="100000 samples per bin"):
        RoiAlign.sample(zeros(1, 1, 4, 4), zeros(1, 4), np.zeros(1, np.int64), sampling_ratio=100000)


def test_deformed_convolution_with_other_offsets() -> None:
    with pytest.raises(UserError, match=r"the offsets must be \[1, 8, 3, 3\]"):
        op = DeformConv.sample(zeros(1, 1, 4, 4), zeros(1, 1, 2, 2), zeros(1, 8, 3, 3), opset=19).op
        op.infer([TensorType.of(zeros(*s)) for s in ((1, 1, 4, 4), (1, 1, 2, 2), (1, 8, 4, 3))])


def test_norm_of_order_zero() -> None:
    with pytest.raises(UserError, match="a norm of order 0"):
        LpPool.sample(zeros(1, 1, 4), kernel_shape=[2], p=0)


def test_transform_of_nothing() -> None:
    with pytest.raises(UserError, match="a Fourier transform of 0 points"):
        DFT.sample(zeros(1, 4, 1), np.array(0, np.int64), opset=17)


def test_frames_longer_than_the_signal() -> None:
    with pytest.raises(UserError, match="has no frames of 8, 1 apart"):
        STFT(1, Transform(8)).infer([TensorType.of(zeros(1, 4, 1))])


def test_windows_that_do_not_make_up_the_image() -> None:
    op = Col2Im.sample(zeros(1, 4, 4), np.array([3, 3]), np.array([2, 2])).op
    with pytest.raises(UserError, match="4 taps and 4 places are needed"):
        op.infer([TensorType.of(zeros(1, 4, 5))])


def test_places_that_are_no_floats() -> None:
    with pytest.raises(UserError, match="places must be floats"):
        GridSample(ResamplingKernel.LINEAR, Edge.ZEROS).infer(
            [TensorType.of(zeros(1, 1, 2, 2)), TensorType.of(np.zeros((1, 1, 1, 2), np.int64))]
        )


def test_file_that_is_no_image() -> None:
    with pytest.raises(UserError, match="not an image of a known format"):
        ImageDecoder("RGB").run([np.arange(9, dtype=np.uint8)], {})
