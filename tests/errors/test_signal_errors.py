"""Refusals of the ops that resize, sample, pool and transform."""

import numpy as np
import pytest

from tilewright.ops.resize import Resize
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
