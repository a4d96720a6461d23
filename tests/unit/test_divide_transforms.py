"""Fourier transforms as two of short ones: numpy's results, and as many points as are worth it."""

import numpy as np
import pytest

from tilewright.graph.build import GraphBuilder
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret_graph
from tilewright.graph.passes.divide_transforms import divide_transforms
from tilewright.graph.verify import verify_graph
from tilewright.ops.core.dft import DFT, Transform
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array


def graph_of(x: Array, op: DFT) -> Graph:
    b = GraphBuilder()
    return b.finish(b.apply(op, b.input("x", TensorType.of(x))))


def divided(x: Array, op: DFT) -> Graph:
    graph = graph_of(x, op)
    after = divide_transforms(graph)
    verify_graph(after)
    assert not any(isinstance(n.op, DFT) for n in after.nodes)
    assert after.output_names == graph.output_names
    return after


@pytest.mark.parametrize(
    ("shape", "axis", "transform"),
    [
        pytest.param((3, 64, 1), 1, Transform(64), id="real"),
        pytest.param((3, 60, 2), 1, Transform(60), id="complex"),
        pytest.param((3, 120, 1), 1, Transform(120, onesided=True), id="half"),
        pytest.param((2, 225, 1), 1, Transform(225, onesided=True), id="half of odd"),
        pytest.param((3, 100, 2), 1, Transform(100, inverse=True), id="inverse"),
        pytest.param((2, 72, 3, 2), 1, Transform(72), id="another axis"),
        pytest.param((72, 2, 1), 0, Transform(72), id="the first axis"),
        pytest.param((2, 50, 1), 1, Transform(64), id="padded"),
        pytest.param((2, 80, 2), 1, Transform(64), id="cut off"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_it_is_what_numpy_computes(
    shape: tuple[int, ...], axis: int, transform: Transform, dtype: type
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    op = DFT(axis, transform)
    (got,), (want,) = interpret_graph(divided(x, op), {"x": x}).values(), op.reference([x])
    assert got.dtype == want.dtype == dtype
    tolerance = {np.float16: 2e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize(
    ("extent", "transform"),
    [
        pytest.param(101, Transform(101), id="a prime"),
        pytest.param(6, Transform(6), id="short"),
        pytest.param(33, Transform(64, inverse=True, onesided=True), id="to real numbers"),
        pytest.param(2, Transform(64), id="few points"),
    ],
)
def test_what_would_be_more_work_stays_whole(extent: int, transform: Transform) -> None:
    graph = graph_of(np.zeros((2, extent, 2), np.float32), DFT(1, transform))
    assert divide_transforms(graph) is graph


def test_the_halves_are_nearly_equal() -> None:
    division = Transform(1024).division(1024, 2)
    assert division is not None and {division.first, division.second} <= {16, 32, 64}
