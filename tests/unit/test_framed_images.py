"""GridSample of few channels: an image in a frame, where one index says where all taps of a place are."""

import numpy as np
import pytest
from native import BEST, run_native

from tilewright.ops.core.grid_sample import GridSample
from tilewright.ops.core.taps import Edge, ResamplingKernel
from tilewright.ops.opdef import TensorType
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder
from tilewright.tir.func import Func
from tilewright.tir.interp import interpret_func


def sampling(op: GridSample, x: Array, grid: Array) -> Func:
    b = FuncBuilder("kernel")
    types = [TensorType.of(x), TensorType.of(grid)]
    params = [b.param(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return b.finish(*op.compute(b, params, "out"))


@pytest.mark.parametrize("edge", Edge)
@pytest.mark.parametrize("kernel", [ResamplingKernel.LINEAR, ResamplingKernel.CUBIC])
@pytest.mark.parametrize("axes", [(1, 5), (7, 2)])
def test_short_axes_and_places_far_outside(
    axes: tuple[int, int], kernel: ResamplingKernel, edge: Edge
) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 3, *axes), np.float32)
    grid = (rng.standard_normal((1, 1, 20, 2)) * 3).astype(np.float32)
    op = GridSample(kernel, edge, aligned=edge is Edge.REFLECT_CENTRES)
    func = sampling(op, x, grid)
    (expected,) = op.reference([x, grid])
    actual = np.empty_like(expected)
    interpret_func(func, {**dict(zip(func.params, (x, grid), strict=False)), func.outputs[0]: actual})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    (native,) = run_native(schedule_func(func, BEST).func, [x, grid], BEST)
    np.testing.assert_allclose(native, expected, rtol=1e-4, atol=1e-4)


def test_infinite_elements_do_not_reach_places_outside() -> None:
    x = np.full((1, 2, 4, 4), np.inf, np.float32)
    grid = np.array([[-2.0, 0.0], [0.0, 5.0], [np.nan, 0.0]], np.float32).reshape(1, 1, 3, 2)
    func = sampling(GridSample(ResamplingKernel.LINEAR, Edge.ZEROS), x, grid)
    (native,) = run_native(schedule_func(func, BEST).func, [x, grid], BEST)
    assert not native[..., :2].any()


@pytest.mark.parametrize(("channels", "indices"), [(3, 1), (8, 4)])
def test_few_channels_need_one_index_for_all_taps(channels: int, indices: int) -> None:
    x, grid = np.zeros((1, channels, 5, 6), np.float32), np.zeros((1, 4, 3, 2), np.float32)
    func = sampling(GridSample(ResamplingKernel.LINEAR, Edge.ZEROS), x, grid)
    assert sum(buffer.dtype.is_int for buffer in func.locals) == indices
