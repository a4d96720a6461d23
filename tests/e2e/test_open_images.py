"""Images of open height and width as one program for all sizes: against ONNX Runtime, size by size.

Borders lie at the size in use, not at the capacity, so every size runs in memory that a run at the largest one has left
full of NaN.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.driver.trace import ProgramTrace
from tilewright.runtime.open_session import OpenSession
from tilewright.sessions.dynamic import DynamicSession

F32 = TensorProto.FLOAT
MOST = 64  # of height and width
STEP = 16
ALONE = ProgramTrace(narrower=())  # without programs for smaller images
SIZES = [(16, 16), (16, 64), (64, 16), (48, 32), (64, 64)]


class Network:
    """A model that is written down layer by layer; layers give the names of their results."""

    def __init__(self, shape: Sequence[int | str]) -> None:
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._shape = list(shape)
        self._rng = np.random.default_rng(0)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"t{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int) -> str:
        scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def conv(self, x: str, cin: int, cout: int, k: int = 3, stride: Any = 1, group: int = 1) -> str:
        strides = [stride, stride] if isinstance(stride, int) else list(stride)
        weights = self.normal(cout, cin // group, k, k), self.normal(cout)
        return self.node("Conv", x, *weights, strides=strides, pads=[k // 2] * 4, group=group)

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def upsampled(self, x: str) -> str:
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        asked: Any = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", x, "", scales, mode="nearest", **asked)

    def model(self, y: str) -> ModelProto:
        self._nodes.append(helper.make_node("Identity", [y], ["y"]))
        x, out = (helper.make_tensor_value_info(n, F32, s) for n, s in (("x", self._shape), ("y", None)))
        graph = helper.make_graph(self._nodes, "g", [x], [out], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def detector() -> ModelProto:
    """Convolutions with strides, a part that is split and joined, pools in a row, an upsampled join, flat heads."""
    n = Network([1, 3, "height", "width"])
    x = n.silu(n.conv(n.silu(n.conv("x", 3, 8, 3, 2)), 8, 16, 3, 2))
    a, b = n.node("Split", n.silu(n.conv(x, 16, 16, 1)), outputs=2, axis=1, num_outputs=2)
    inner = n.node("Add", b, n.silu(n.conv(n.silu(n.conv(b, 8, 8)), 8, 8)))
    fine = n.silu(n.conv(n.node("Concat", a, b, inner, axis=1), 24, 16, 1))
    coarse = [n.silu(n.conv(fine, 16, 16, 3, 2))]
    for _ in range(2):
        coarse.append(n.node("MaxPool", coarse[-1], kernel_shape=[5, 5], pads=[2] * 4))
    low = n.silu(n.conv(n.node("Concat", *coarse, axis=1), 48, 16, 1))
    high = n.conv(n.node("Concat", n.upsampled(low), fine, axis=1), 32, 12, 3)
    flat = n.constant(np.array([1, 12, -1], np.int64))
    heads = [n.node("Reshape", t, flat) for t in (high, n.conv(low, 16, 12, 1))]
    return n.model(n.node("Sigmoid", n.node("Concat", *heads, axis=2)))


def classifier() -> ModelProto:
    """Depthwise convolutions, clipped, and a global average over both open axes."""
    n = Network([1, 3, "height", "width"])
    x = n.conv("x", 3, 16, 3, 2)
    for stride in (1, 2):
        x = n.node("Relu", n.conv(x, 16, 32, 1))
        x = n.conv(n.node("Relu", n.conv(x, 32, 32, 3, stride, 32)), 32, 16, 1)
    x = n.node("Flatten", n.node("GlobalAveragePool", x))
    return n.model(n.node("Gemm", x, n.normal(16, 10), n.normal(10)))


def recogniser() -> ModelProto:
    """Height fixed, width open: depthwise strides, a pool over all of the height, attention along the width."""
    n = Network([1, 3, 16, "width"])
    x = n.node("HardSwish", n.conv("x", 3, 16, 3, 2))
    x = n.node("HardSwish", n.conv(n.conv(x, 16, 16, 5, (2, 1), 16), 16, 32, 1))
    x = n.node("AveragePool", x, kernel_shape=[4, 3], strides=[4, 1], pads=[0, 1, 0, 1])
    rows = n.constant(np.array([1, 32, -1], np.int64))
    x = n.node("Transpose", n.node("Reshape", x, rows), perm=[0, 2, 1])
    q, k, v = (n.node("MatMul", x, n.normal(32, 32)) for _ in range(3))
    scores = n.node("MatMul", q, n.node("Transpose", k, perm=[0, 2, 1]))
    return n.model(n.node("MatMul", n.node("Softmax", scores), v))


def segmenter(kind: str) -> ModelProto:
    """Down and up again, by a transposed convolution or by a resize to the size of what it is joined with."""
    n = Network([1, 3, "height", "width"])
    skip = n.node("Relu", n.conv("x", 3, 16))
    x = n.node("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    x = n.node("Relu", n.conv(x, 16, 24))
    if kind == "transposed":
        x = n.node("ConvTranspose", x, n.normal(24, 16, 2, 2), strides=[2, 2])
    else:
        channels = n.constant(np.array([24], np.int64))
        sizes = n.node(
            "Concat", n.node("Shape", "x", start=0, end=1), channels, n.node("Shape", skip, start=2), axis=0
        )
        x = n.node("Resize", x, "", "", sizes, mode=kind)
    width = 16 if kind == "transposed" else 24
    return n.model(n.conv(n.node("Concat", skip, x, axis=1), 16 + width, 2))


MODELS = {
    "detector": detector,
    "classifier": classifier,
    "recogniser": recogniser,
    **{f"segmenter {k}": functools.partial(segmenter, k) for k in ("transposed", "linear", "nearest")},
}


def dims_of(m: ModelProto, step: int = STEP) -> dict[str, tuple[int, int, int]]:
    shape = m.graph.input[0].type.tensor_type.shape.dim
    return {d.dim_param: (16, MOST, step) for d in shape if d.dim_param}


def image(m: ModelProto, height: int, width: int) -> Any:
    _, _, rows, _ = m.graph.input[0].type.tensor_type.shape.dim
    shape = (1, 3, height if rows.dim_param else rows.dim_value, width)
    return np.random.default_rng(height + width).standard_normal(shape).astype(np.float32)


# In long runs: the detector enlarges by copies too.
MORE = ("segmenter nearest",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in MORE else ()) for n in MODELS]
)
def test_borders_lie_at_the_size_in_use(name: str) -> None:
    m = MODELS[name]()
    other: Any = ort.InferenceSession(m.SerializeToString())
    with tw.load(m, dims=dims_of(m), threads=2, trace=ALONE) as session:
        assert isinstance(session, OpenSession)
        for height, width in SIZES:
            session.run({"x": np.full_like(image(m, MOST, MOST), np.nan)})
            x = image(m, height, width)
            got: Any = session.run({"x": x})["y"]
            wanted: Any = other.run(None, {"x": x})[0]
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=f"{height}x{width}")


def test_a_kernel_as_wide_as_the_size_says_is_refused() -> None:
    """A resize against aliasing, by a factor that is another one for every size, has a program for each shape."""
    n = Network([1, 3, "height", "width"])
    sizes = n.constant(np.array([1, 3, 8, 24], np.int64))
    m = n.model(n.node("Resize", "x", "", "", sizes, mode="linear", antialias=1))
    with tw.load(m, dims=dims_of(m)) as session:
        assert isinstance(session, DynamicSession)


def stacked() -> ModelProto:
    """Convolutions that may be computed by transformed tiles, the last of which is in use in part; and a pool."""
    n = Network([1, 3, "height", "width"])
    x = n.node("Relu", n.conv("x", 3, 32, 3, 2))
    x = n.node("Relu", n.conv(n.node("Relu", n.conv(x, 32, 64)), 64, 64))
    return n.model(n.conv(n.node("MaxPool", x, kernel_shape=[5, 5], pads=[2] * 4), 64, 8, 1))


def heads(channels: int) -> ModelProto:
    """Two scales, flattened and joined."""
    n = Network([1, 3, "height", "width"])
    x = n.conv("x", 3, 8)
    flat = n.constant(np.array([1, channels, -1], np.int64))
    scales = [n.conv(x, 8, channels, 1), n.conv(n.conv(x, 8, 8, 3, 2), 8, channels, 1)]
    joined = n.node("Concat", *(n.node("Reshape", s, flat) for s in scales), axis=2)
    return n.model(n.node("Sigmoid", joined))


@pytest.mark.parametrize("build", [classifier, stacked, lambda: heads(24), lambda: heads(2)])
def test_sizes_in_steps_of_one(build: Callable[[], ModelProto]) -> None:
    m = build()
    other: Any = ort.InferenceSession(m.SerializeToString())
    with tw.load(m, dims=dims_of(m, 1), threads=2, trace=ALONE) as session:
        assert isinstance(session, OpenSession)
        for size in (17, 30, 47, 64):
            x = image(m, size, 81 - size)
            session.run({"x": np.full_like(image(m, MOST, MOST), np.nan)})
            got: Any = session.run({"x": x})["y"]
            wanted: Any = other.run(None, {"x": x})[0]
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4, err_msg=f"{size}x{81 - size}")


def test_an_image_that_is_flattened_and_joined_to_itself() -> None:
    """Rows of one of the two are not all that is stored."""
    n = Network(["height", "width"])
    flat = n.constant(np.array([-1], np.int64))
    m = n.model(n.node("Concat", *(n.node("Reshape", "x", flat) for _ in range(2)), axis=0))
    with tw.load(m, dims={"height": (1, 3), "width": (8, 96, 8)}, threads=1) as session:
        assert isinstance(session, OpenSession)
        for height, width in ((1, 8), (3, 96), (2, 40), (3, 8)):
            session.run({"x": np.full((3, 96), np.nan, np.float32)})
            x = np.arange(height * width, dtype=np.float32).reshape(height, width)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.concatenate([x.ravel(), x.ravel()]))
