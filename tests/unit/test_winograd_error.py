"""The error of a Winograd convolution: what is measured, and that it is what the program has."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.ir.dtype import DType
from tilewright.ops.accuracy import DEFAULT
from tilewright.ops.core.conv import Conv
from tilewright.ops.core.cook_toom import Scheme, scheme
from tilewright.ops.core.window import Window
from tilewright.ops.core.winograd import Winograd, algorithms
from tilewright.ops.core.winograd_error import winograd_error
from tilewright.ops.opdef import TensorType
from tilewright.tir.build import FuncBuilder
from tilewright.tir.interp import run_func

RNG = np.random.default_rng(0)
PADDED = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))


def layer(*shape: int) -> NDArray[Any]:
    return RNG.standard_normal(shape, np.float32) / math.sqrt(math.prod(shape[1:]))


def schemes(outputs: int, *kernel: int) -> list[Scheme]:
    found = [scheme(1 if k == 1 else outputs, k) for k in kernel]
    assert None not in found
    return [s for s in found if s is not None]


LAYERS = [(16, 16), (64, 64), (512, 512), (20, 300)]


@pytest.mark.parametrize("channels", LAYERS, ids=str)
@pytest.mark.parametrize("kernel", [(3,), (3, 3), (1, 3)], ids=str)
def test_random_layers_have_small_errors(channels: tuple[int, int], kernel: tuple[int, ...]) -> None:
    weights = layer(*channels, *kernel)
    small, large = (winograd_error(schemes(m, *kernel), weights) for m in (2, 4))
    assert 2e-8 < small < 2e-6
    assert 5e-8 < large < 1e-5
    assert DEFAULT.allows(large)


def test_larger_tiles_have_larger_errors() -> None:
    weights = layer(64, 64, 3, 3)
    assert winograd_error(schemes(2, 3, 3), weights) < winograd_error(schemes(4, 3, 3), weights)


def test_the_scale_of_the_weights_does_not_matter() -> None:
    weights = layer(32, 32, 3, 3)
    found = [winograd_error(schemes(4, 3, 3), weights * np.float32(s)) for s in (1, 2.0**-40, 2.0**40)]
    assert found == [found[0]] * 3


def test_the_same_layer_gives_the_same_figure() -> None:
    weights = layer(40, 24, 3, 3)
    assert winograd_error(schemes(4, 3, 3), weights) == winograd_error(schemes(4, 3, 3), weights.copy())
    assert winograd_error(schemes(4, 3, 3), weights) != winograd_error(schemes(4, 3, 3), weights, seed=1)


def test_nothing_is_lost_of_nothing() -> None:
    assert winograd_error(schemes(4, 3, 3), np.zeros((16, 16, 3, 3), np.float32)) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_never_allowed(value: float) -> None:
    weights = layer(16, 16, 3, 3)
    weights[3, 5, 1, 2] = value
    assert winograd_error(schemes(2, 3, 3), weights) == math.inf


def test_weights_at_the_ends_of_their_range_are_rejected() -> None:
    """Sums of a transform overflow where the convolution itself does not; and few bits are left of the smallest."""
    weights = layer(16, 16, 3, 3)
    large, small = weights.copy(), weights * np.float32(1e-41)
    large[:, 0, 1, 1] = 6e37
    assert not DEFAULT.allows(winograd_error(schemes(4, 3, 3), large))
    assert not DEFAULT.allows(winograd_error(schemes(4, 3, 3), small))


def test_one_large_channel_among_many_is_seen() -> None:
    """Errors are relative to the largest output of the layer: that of the channel with the largest weights."""
    weights = layer(400, 16, 3, 3) * np.float32(1e-6)
    weights[217] *= np.float32(1e6)
    only = winograd_error(schemes(4, 3, 3), weights[217:218])
    assert winograd_error(schemes(4, 3, 3), weights) == pytest.approx(only, rel=0.5)


def convolved(algorithm: Winograd, weights: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """By the interpreter: every stage as the program has it."""
    window = PADDED
    b = FuncBuilder("layer")
    data, filters = (b.param(n, a.shape, DType.F32) for n, a in (("x", x), ("w", weights)))
    out = TensorType(DType.F32, (1, len(weights), *x.shape[2:]))
    tiles = algorithm.compute(b, data, filters, window, out, "conv")
    result = b.compute("y", out.shape, tiles.at, axes=["n", "o", *window.axes()])
    (found,) = run_func(b.finish(result), x, weights)
    return found


@pytest.mark.parametrize("outputs", [2, 4])
def test_the_figure_is_that_of_the_program(outputs: int) -> None:
    weights, x = layer(16, 16, 3, 3), RNG.standard_normal((1, 16, 8, 8), np.float32)
    found = algorithms(TensorType.of(weights), PADDED, 1, TensorType.of(x))
    algorithm = next(a for a in found if a.outputs == [outputs, outputs])
    result = convolved(algorithm, weights, x)
    (exact,) = Conv(PADDED).reference((x.astype(np.float64), weights.astype(np.float64)))
    error = float(np.abs(result - exact).max() / np.abs(exact).max())
    assert error / 2 < winograd_error(algorithm.schemes, weights) < error * 2
