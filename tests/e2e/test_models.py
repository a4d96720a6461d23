"""Whole models: small versions of the usual networks, and layers of every odd size, agree with onnxruntime."""

import logging
import math

import numpy as np
import pytest
from onnx import ModelProto

from examples.models import mlp, resnet18, transformer_encoder
from tests.onnx_cases import Model, check_model
from tilewright.search import default


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")


# ------------------------------------------------------------------------------------------------------------- networks


def batch_norm(m: Model, x: str, channels: int) -> str:
    scale, bias, mean = (m.constant(m.rng.normal(c, 0.2, channels).astype(np.float32)) for c in (1, 0, 0))
    variance = m.constant(m.rng.uniform(0.5, 1.5, channels).astype(np.float32))
    return m.op("BatchNormalization", x, scale, bias, mean, variance)


def mobile_net(batch: int = 1, size: int = 17) -> ModelProto:
    """Inverted residuals: 1×1, depthwise 3×3, 1×1, with ReLU6."""
    m = Model()

    def relu6(x: str) -> str:
        return m.op("Clip", x, m.constant(0.0, np.float32), m.constant(6.0, np.float32))

    def conv(x: str, c_in: int, c_out: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        pads = [kernel // 2] * 4
        w = m.weight(c_out, c_in // group, kernel, kernel)
        return batch_norm(m, m.op("Conv", x, w, strides=[stride] * 2, pads=pads, group=group), c_out)

    x = m.input(batch, 3, size, size)
    y, width = relu6(conv(x, 3, 8, 3, 2)), 8
    for c_out, stride in ((8, 1), (12, 2), (12, 1)):
        z = relu6(conv(y, width, 3 * width, 1))
        z = relu6(conv(z, 3 * width, 3 * width, 3, stride, group=3 * width))
        z = conv(z, 3 * width, c_out, 1)
        y = m.op("Add", z, y) if stride == 1 and c_out == width else z
        width = c_out
    y = m.op("Flatten", m.op("GlobalAveragePool", relu6(conv(y, width, 33, 1))), axis=1)
    return m.finish(m.op("Gemm", y, m.weight(7, 33), m.weight(7), transB=1))


def attention(m: Model, y: str, batch: int, tokens: int, hidden: int, heads: int) -> str:
    def linear(x: str) -> str:
        return m.op("Add", m.op("MatMul", x, m.weight(hidden, hidden)), m.weight(hidden))

    def split(x: str, *perm: int) -> str:
        shape = m.ints(batch, tokens, heads, hidden // heads)
        return m.op("Transpose", m.op("Reshape", x, shape), perm=perm)

    q, k, v = split(linear(y), 0, 2, 1, 3), split(linear(y), 0, 2, 3, 1), split(linear(y), 0, 2, 1, 3)
    scores = m.op(
        "Mul", m.op("MatMul", q, k), m.constant(np.float32(1 / math.sqrt(hidden // heads)), np.float32)
    )
    mixed = m.op("Transpose", m.op("MatMul", m.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return linear(m.op("Reshape", mixed, m.ints(batch, tokens, hidden)))


def layer_norm(m: Model, x: str, hidden: int) -> str:
    return m.op("LayerNormalization", x, m.weight(hidden), m.weight(hidden), axis=-1)


def vision_transformer(batch: int = 2, size: int = 12, patch: int = 4, hidden: int = 24) -> ModelProto:
    """Patches by a convolution, a class token by Concat, a pre-norm layer with Gelu, and the class token's head."""
    m = Model(opset=20)
    x = m.input(batch, 3, size, size)
    grid = size // patch
    y = m.op("Conv", x, m.weight(hidden, 3, patch, patch), m.weight(hidden), strides=[patch, patch])
    y = m.op("Transpose", m.op("Reshape", y, m.ints(batch, hidden, grid * grid)), perm=[0, 2, 1])
    token = m.op("Expand", m.weight(1, 1, hidden), m.ints(batch, 1, hidden))
    y = m.op("Concat", token, y, axis=1)
    y = m.op("Add", y, m.weight(1, grid * grid + 1, hidden))
    tokens = grid * grid + 1
    y = m.op("Add", y, attention(m, layer_norm(m, y, hidden), batch, tokens, hidden, 3))
    z = m.op("Gelu", m.op("MatMul", layer_norm(m, y, hidden), m.weight(hidden, 2 * hidden)))
    y = m.op("Add", y, m.op("MatMul", z, m.weight(2 * hidden, hidden)))
    first = m.op("Gather", layer_norm(m, y, hidden), m.constant(0, np.int64), axis=1)
    return m.finish(m.op("Gemm", first, m.weight(hidden, 5), m.weight(5)))


def u_net(batch: int = 1) -> ModelProto:
    """Down and up again, once by ConvTranspose and once by Resize, with the skipped features concatenated."""
    m = Model()

    def conv(x: str, c_in: int, c_out: int) -> str:
        return m.op("Relu", m.op("Conv", x, m.weight(c_out, c_in, 3, 3), m.weight(c_out), pads=[1] * 4))

    x = m.input(batch, 1, 16, 20)
    one = conv(x, 1, 8)
    two = conv(m.op("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), 8, 16)
    three = conv(m.op("MaxPool", two, kernel_shape=[2, 2], strides=[2, 2]), 16, 24)
    up = m.op("ConvTranspose", three, m.weight(24, 16, 2, 2), m.weight(16), strides=[2, 2])
    y = conv(m.op("Concat", two, up, axis=1), 32, 16)
    scales = m.constant([1, 1, 2, 2], np.float32)
    wide = m.op(
        "Resize",
        y,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    y = conv(m.op("Concat", one, wide, axis=1), 24, 8)
    return m.finish(m.op("Sigmoid", m.op("Conv", y, m.weight(2, 8, 1, 1))))


def one_dimensional(batch: int = 2) -> ModelProto:
    m = Model()
    x = m.input(batch, 2, 47)
    y = m.op("Relu", m.op("Conv", x, m.weight(9, 2, 5), m.weight(9), pads=[2, 2], strides=[2]))
    y = m.op("MaxPool", y, kernel_shape=[3], strides=[2])
    y = m.op("Relu", m.op("Conv", y, m.weight(17, 9, 3), pads=[2, 2], dilations=[2]))
    y = m.op("GlobalMaxPool", y)
    return m.finish(m.op("MatMul", m.op("Flatten", y), m.weight(17, 3)))


NETWORKS = {
    "mlp": lambda: mlp((13, 33, 17, 5), batch=3),
    "mlp-one-row": lambda: mlp((30, 64, 10)),
    "resnet18": lambda: resnet18(size=33, classes=11),
    "transformer": lambda: transformer_encoder(layers=1, hidden=24, heads=3, tokens=7, batch=2),
    "mobile_net": mobile_net,
    "mobile_net-batch-3": lambda: mobile_net(batch=3, size=14),
    "vision_transformer": vision_transformer,
    "u_net": u_net,
    "u_net-batch-2": lambda: u_net(batch=2),
    "one_dimensional": one_dimensional,
}


# In long runs: others than these have the same layers.
MORE = ("mobile_net-batch-3", "u_net-batch-2")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in MORE else ()) for n in NETWORKS]
)
def test_network(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, default.__name__):
        check_model(NETWORKS[name]())
    refusals = [r.getMessage() for r in caplog.records if r.name == default.__name__]
    assert not refusals, "a recipe does not fit, so the kernel will be slow"


@pytest.mark.parametrize("name", ["mlp", "transformer", "mobile_net", "u_net", "one_dimensional"])
def test_network_on_any_x86_64(name: str) -> None:
    check_model(NETWORKS[name](), target="x86-64")


# --------------------------------------------------------------------------------------------------------- convolutions


def convolution(
    batch: int, c_in: int, c_out: int, size: tuple[int, ...], kernel: tuple[int, ...], **attrs: object
) -> ModelProto:
    """A convolution between two others, so that its input and output may be laid out as it likes."""
    m = Model()
    ones = [1] * len(kernel)
    x = m.input(batch, 3, *size)
    y = m.op("Relu", m.op("Conv", x, m.weight(c_in, 3, *ones)))
    y = m.op(
        "Conv", y, m.weight(c_out, c_in // int(attrs.get("group", 1)), *kernel), m.weight(c_out), **attrs
    )
    return m.finish(y, m.op("Conv", m.op("Relu", y), m.weight(5, c_out, *ones)))


# One image and several in turn, so that narrow, even and odd ones have both; the other one in long runs.
CHANNELS = [
    pytest.param(channels, batch, marks=() if (number % 2 == 0) is (batch == 1) else pytest.mark.slow)
    for number, channels in enumerate((1, 2, 3, 7, 8, 9, 16, 17, 31, 33))
    for batch in (1, 3)
]


@pytest.mark.parametrize(("channels", "batch"), CHANNELS)
def test_convolution_with_any_number_of_channels(channels: int, batch: int) -> None:
    check_model(convolution(batch, channels, 34 - channels, (7, 6), (3, 3), pads=[1, 1, 1, 1]))


CONVOLUTIONS = {
    "grouped": lambda: convolution(2, 12, 24, (6, 7), (3, 3), group=3, pads=[1, 1, 1, 1]),
    "grouped-of-one-out": lambda: convolution(1, 16, 4, (6, 7), (3, 3), group=4),
    "depthwise": lambda: convolution(2, 13, 13, (9, 8), (3, 3), group=13, pads=[1, 1, 1, 1]),
    "depthwise-many": lambda: convolution(1, 40, 40, (9, 8), (5, 5), group=40, strides=[2, 2]),
    "depthwise-multiplied": lambda: convolution(1, 6, 12, (9, 8), (3, 3), group=6),
    "dilated": lambda: convolution(1, 8, 9, (11, 10), (3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "asymmetric-pads": lambda: convolution(1, 5, 8, (6, 7), (3, 2), pads=[0, 1, 2, 0]),
    "stride-over-kernel": lambda: convolution(1, 8, 8, (13, 13), (2, 2), strides=[3, 4]),
    "kernel-of-the-image": lambda: convolution(2, 8, 11, (7, 6), (7, 6)),
    "kernel-over-the-image": lambda: convolution(1, 3, 8, (4, 4), (7, 7), pads=[3, 3, 3, 3]),
    "one-pixel": lambda: convolution(3, 16, 8, (1, 1), (1, 1)),
    "one-row": lambda: convolution(1, 9, 8, (1, 19), (1, 5), pads=[0, 2, 0, 2]),
    "one-column": lambda: convolution(1, 9, 8, (19, 1), (5, 1)),
    "same-upper": lambda: convolution(1, 4, 8, (7, 8), (4, 4), auto_pad="SAME_UPPER", strides=[2, 2]),
    "three-dimensional": lambda: convolution(1, 4, 9, (5, 4, 6), (3, 2, 3), pads=[1, 0, 1, 1, 1, 1]),
    "long": lambda: convolution(1, 3, 8, (300,), (9,), strides=[2]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    check_model(CONVOLUTIONS[name]())


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (7, 7), (13, 8), (17, 31)])
def test_products_of_odd_sizes_with_an_epilogue(size: tuple[int, int]) -> None:
    rows, cols = size
    m = Model()
    x, residual = m.input(rows, 23), m.input(rows, cols)
    y = m.op("Add", m.op("MatMul", x, m.weight(23, cols)), m.weight(cols))
    check_model(m.finish(m.op("Add", m.op("Tanh", y), residual)))


def test_padded_input_that_is_a_constant_is_packed_whole() -> None:
    """Its copy is made by two kernels, for vectors and for the rest, into one buffer."""
    m = Model()
    x = m.constant(m.rng.standard_normal((1, 2, 4, 5)).astype(np.float32))
    check_model(m.finish(m.op("Conv", x, m.weight(3, 2, 2, 2), pads=[1, 1, 0, 0])))


def test_a_buffer_with_a_constant_part_is_written_at_run_time() -> None:
    m = Model()
    x = m.input(1, 3, 8)
    y = m.op("Concat", m.weight(1, 3, 8), x, m.weight(1, 2, 8), axis=1)
    check_model(m.finish(m.op("MatMul", y, m.weight(8, 8))))


def test_activations_of_padded_values_stay_short() -> None:
    """Each of them chooses between two sides; what was loaded under a condition is not loaded again for each side."""
    m = Model()
    x = m.op("Pad", m.input(5, 4, 5), m.ints(2, 0, 1, 2, 1, 0))
    y = m.op("Tanh", m.op("Mul", x, m.op("Tanh", x)))
    check_model(m.finish(m.op("Log", m.op("Softplus", y))))


# ------------------------------------------------------------------------------------------------------------ epilogues


def epilogue(name: str) -> ModelProto:
    m = Model()
    x = m.input(2, 6, 5)
    match name:
        case "batch-norm":  # scale and shift are computed from constants first
            y = batch_norm(m, m.op("MatMul", x, m.weight(5, 9)), 6)
            return m.finish(y, batch_norm(m, m.op("ConvTranspose", x, m.weight(6, 9, 2), strides=[2]), 9))
        case "masked":
            scores = m.op("MatMul", x, m.op("Transpose", m.input(2, 6, 5), perm=[0, 2, 1]))
            mask = m.input(2, 1, 6, dtype=np.bool_)
            return m.finish(m.op("Where", mask, scores, m.constant(np.float32(-100))))
        case "masked-convolution":
            y = m.op(
                "Conv",
                m.input(3, 2, 8, 9),
                m.weight(1, 2, 5, 1),
                m.weight(1),
                dilations=[2, 1],
                pads=[4, 0, 2, 0],
            )
            return m.finish(m.op("Where", m.input(3, 1, 1, 9, dtype=np.bool_), y, m.weight(6, 9)))
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize("name", ["batch-norm", "masked", "masked-convolution"])
def test_epilogue_runs_on_registers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, default.__name__):
        check_model(epilogue(name))
    assert not [r.getMessage() for r in caplog.records if r.name == default.__name__]
