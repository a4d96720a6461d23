"""Operators at sizes of real models, of which one may be quicker with a plugin and another without.

All take and give the same number of floats, so that any two can be put one after the other. A layer can be repeated;
its weights are others each time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto, helper

from examples.models import Net

FLOATS = 1 << 18
IMAGE = (1, 64, 64, 64)
SMALL_IMAGE = (1, 256, 32, 32)
MATRIX = (512, 512)
ROWS = (256, 1024)
CUBE = (64, 64, 64)
STEPS = (64, 16, 256)  # a sequence of 64, of 16 times 256 features


class PartNet(Net):
    """A network whose nodes may have more than one output."""

    def first_of(self, outputs: int, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node with several outputs; the first of them."""
        name = self._fresh(op_type.lower())
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(op_type, inputs, names, name=name, **attrs))
        return name

    def matrix(self, shape: Sequence[int], scale: float, dtype: type[np.floating]) -> str:
        return self.constant("weight", self._rng.normal(0, scale, tuple(shape)).astype(dtype))

    def draw(self, high: int, shape: Sequence[int]) -> str:
        """Constant positions."""
        return self.constant("positions", self._rng.integers(0, high, tuple(shape)))

    def shuffle(self, count: int) -> str:
        return self.constant("order", self._rng.permutation(count))

    def bytes(self, shape: Sequence[int], dtype: type[np.generic]) -> str:
        low = 0 if dtype is np.uint8 else -128
        return self.constant("bytes", self._rng.integers(low, low + 256, tuple(shape)).astype(dtype))


Layer: TypeAlias = Callable[[PartNet, str], str]
"""Adds nodes over a value, and gives another of as many elements."""


def shaped(shape: Sequence[int], layer: Layer) -> Layer:
    """The layer over a value of this shape; outside, all are flat."""

    def add(net: PartNet, x: str) -> str:
        y = layer(net, net.op("Reshape", x, net.ints("shape", *shape)))
        return net.op("Reshape", y, net.ints("flat", FLOATS))

    return add


def model_of(*layers: Layer) -> ModelProto:
    """One layer after the other."""
    net = PartNet(0)
    y = "x"
    for layer in layers:
        y = layer(net, y)
    return net.model("composed", {"x": (FLOATS,)}, {"y": (FLOATS,)})


# ------------------------------------------------------------------------------------------------------------- layers


def elementwise(op_type: str, **attrs: Any) -> Layer:
    return lambda net, x: net.op(op_type, x, **attrs)


def conv(channels: int, kernel: Sequence[int], **attrs: Any) -> Layer:
    """A convolution that keeps the shape, with an activation."""
    dilation = attrs.get("dilations", [1] * len(kernel))
    pads = [(k - 1) // 2 * d for k, d in zip(kernel, dilation, strict=True)] * 2
    depth = channels // attrs.get("group", 1)

    def add(net: PartNet, x: str) -> str:
        weight = net.normal("weight", (channels, depth, *kernel), math.sqrt(2 / (depth * math.prod(kernel))))
        return net.op("Relu", net.op("Conv", x, weight, kernel_shape=list(kernel), pads=pads, **attrs))

    return add


def conv_transpose(net: PartNet, x: str) -> str:
    weight = net.normal("weight", (64, 16, 2, 2), 0.125)
    return net.op("Relu", net.op("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2]))


def dense(n: int, dtype: type[np.floating] = np.float32) -> Layer:
    """A MatMul with a constant matrix, in another type of floats if asked for."""

    def add(net: PartNet, x: str) -> str:
        weight = net.matrix((n, n), math.sqrt(2 / n), dtype)
        if dtype is np.float32:
            return net.op("Relu", net.op("MatMul", x, weight))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        product = net.op("MatMul", net.op("Cast", x, to=kind), weight)
        return net.op("Relu", net.op("Cast", product, to=TensorProto.FLOAT))

    return add


def bottleneck(net: PartNet, x: str) -> str:
    down = net.op("Relu", net.op("MatMul", x, net.normal("down", (1024, 64), 1 / 32)))
    return net.op("MatMul", down, net.normal("up", (64, 1024), 1 / 8))


def small_products(net: PartNet, x: str) -> str:
    return net.op("MatMul", x, net.normal("weight", (512, 64, 64), 1 / 8))


def einsum(net: PartNet, x: str) -> str:
    """Contracts the last dimension, keeps the middle one, and turns the result around."""
    return net.op("Einsum", x, net.normal("weight", CUBE, 1 / 8), equation="abc,cbd->adb")


def one_row(net: PartNet, x: str) -> str:
    """A vector times a large matrix, which is read once."""
    row = net.op("ReduceMean", x, net.ints("axes", 0), keepdims=1)
    return net.op("Add", x, net.op("MatMul", row, net.normal("weight", (4096, 4096), 1 / 64)))


def attention(net: PartNet, x: str) -> str:
    heads = net.op("Transpose", net.op("Reshape", x, net.ints("shape", 512, 8, 64)), perm=[1, 0, 2])
    keys = net.op("Transpose", heads, perm=[0, 2, 1])
    scores = net.op("Mul", net.op("MatMul", heads, keys), net.scalar("scale", 0.125))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), heads)
    return net.op("Transpose", mixed, perm=[1, 0, 2])


def attention_to_a_cache(net: PartNet, x: str) -> str:
    """One query for each of eight heads, over 4096 keys."""
    row = net.op("ReduceMean", x, net.ints("axes", 0), keepdims=1)
    query = net.op("Reshape", row, net.ints("shape", 8, 1, 64))
    weights = net.op("Softmax", net.op("MatMul", query, net.normal("keys", (8, 64, 4096), 0.1)), axis=-1)
    mixed = net.op("MatMul", weights, net.normal("values", (8, 4096, 64), 1.0))
    return net.op("Add", x, net.op("Reshape", mixed, net.ints("shape", 1, 512)))


def quantized_dense(net: PartNet, x: str) -> str:
    zero = net.constant("zero", np.array(128, np.uint8))
    given = net.op("QuantizeLinear", x, net.scalar("scale", 0.04), zero)
    product = net.op("MatMulInteger", given, net.bytes(MATRIX, np.int8), zero)
    return net.op("Mul", net.op("Cast", product, to=TensorProto.FLOAT), net.scalar("scale", 1e-5))


def quantized_conv(net: PartNet, x: str) -> str:
    zero, scale = net.constant("zero", np.array(128, np.uint8)), net.scalar("scale", 0.04)
    given = net.op("QuantizeLinear", x, scale, zero)
    weight, narrow = net.bytes((64, 64, 3, 3), np.int8), net.constant("zero", np.array(0, np.int8))
    made = net.op(
        "QLinearConv",
        given,
        scale,
        zero,
        weight,
        net.scalar("scale", 6e-4),
        narrow,
        scale,
        zero,
        pads=[1] * 4,
    )
    return net.op("DequantizeLinear", made, scale, zero)


def layer_norm(*shape: int) -> Layer:
    def add(net: PartNet, x: str) -> str:
        scale, bias = net.uniform("scale", shape, 0.8, 1.2), net.normal("bias", shape, 0.1)
        return net.op("LayerNormalization", x, scale, bias, axis=-len(shape))

    return add


def instance_norm(net: PartNet, x: str) -> str:
    return net.op(
        "InstanceNormalization", x, net.uniform("scale", (64,), 0.8, 1.2), net.normal("bias", (64,), 0.1)
    )


def minus_reduced(op_type: str, axis: int) -> Layer:
    return lambda net, x: net.op("Sub", x, net.op(op_type, x, net.ints("axes", axis), keepdims=1))


def pool(op_type: str, kernel: int) -> Layer:
    return elementwise(op_type, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)


def there_and_back(**attrs: Any) -> Layer:
    """An image made larger by half, and as large as it was again."""

    def add(net: PartNet, x: str) -> str:
        for size in (96, 64):
            x = net.op("Resize", x, "", "", net.ints("sizes", 1, 64, size, size), **attrs)
        return x

    return add


def grid_sample(net: PartNet, x: str) -> str:
    return net.op("GridSample", x, net.uniform("grid", (1, 64, 64, 2), -1, 1), align_corners=0)


def roi_align(net: PartNet, x: str) -> str:
    corner = np.random.default_rng(1).uniform(0, 40, (64, 2))
    boxes = net.constant("boxes", np.concatenate([corner, corner + 20], axis=1).astype(np.float32))
    images = net.constant("images", np.zeros(64, np.int64))
    return net.op("RoiAlign", x, boxes, images, output_height=8, output_width=8, sampling_ratio=2)


def top_k(count: int) -> Layer:
    """All of a row, sorted and shuffled again; or the row less the mean of its largest few."""

    def add(net: PartNet, x: str) -> str:
        best = net.first_of(2, "TopK", x, net.ints("k", count), axis=-1)
        if count == ROWS[1]:
            return net.op("Gather", best, net.shuffle(count), axis=1)
        return net.op("Sub", x, net.op("ReduceMean", best, net.ints("axes", 1)))

    return add


def arg_max(net: PartNet, x: str) -> str:
    place = net.op("Cast", net.op("ArgMax", x, axis=1), to=TensorProto.FLOAT)
    return net.op("Sub", x, net.op("Mul", place, net.scalar("scale", 1e-3)))


def cum_sum(axis: int) -> Layer:
    def add(net: PartNet, x: str) -> str:
        total = net.op("CumSum", x, net.constant("axis", np.array(axis)))
        return net.op("Mul", total, net.scalar("scale", 0.03))

    return add


def gather_rows(net: PartNet, x: str) -> str:
    return net.op("Gather", x, net.shuffle(4096), axis=0)


def gather_elements(net: PartNet, x: str) -> str:
    return net.op("GatherElements", x, net.draw(MATRIX[1], MATRIX), axis=1)


def embedding(net: PartNet, x: str) -> str:
    """Rows of a large table, by numbers that are computed."""
    first = net.op("Slice", x, net.ints("start", 0), net.ints("end", 1), net.ints("axis", 0))
    number = net.op("Mul", net.op("Abs", net.op("Sin", first)), net.scalar("count", 99_999.0))
    found = net.op("Cast", net.op("Reshape", number, net.ints("shape", 16384)), to=TensorProto.INT64)
    return net.op("Gather", net.normal("table", (100_000, 16), 1.0), found)


def scatter_rows(net: PartNet, x: str) -> str:
    where = net.op("Unsqueeze", net.shuffle(4096), net.ints("axis", 1))
    return net.op("ScatterND", net.constant("zeros", np.zeros((4096, 64), np.float32)), where, x)


def scatter_elements(net: PartNet, x: str) -> str:
    zeros = net.constant("zeros", np.zeros(MATRIX, np.float32))
    return net.op("ScatterElements", zeros, net.draw(MATRIX[1], MATRIX), x, axis=1, reduction="add")


def gelu(net: PartNet, x: str) -> str:
    bell = net.op("Erf", net.op("Div", x, net.scalar("root", math.sqrt(2))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", bell, net.scalar("one", 1))), net.scalar("half", 0.5))


def mish(net: PartNet, x: str) -> str:
    return net.op("Mul", x, net.op("Tanh", net.op("Softplus", x)))


def power(net: PartNet, x: str) -> str:
    return net.op("Pow", net.op("Abs", x), net.scalar("exponent", 1.1))


def recurrent(op_type: str, gates: int, **attrs: Any) -> Layer:
    def add(net: PartNet, x: str) -> str:
        width = gates * 256
        weights = (net.normal(n, (1, width, 256), 1 / 16) for n in ("input_weight", "state_weight"))
        return net.op(op_type, x, *weights, net.normal("bias", (1, 2 * width), 0.1), hidden_size=256, **attrs)

    return add


def reflect(net: PartNet, x: str) -> str:
    padded = net.op("Pad", x, net.ints("pads", 0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    return net.op("AveragePool", padded, kernel_shape=[3, 3])


PARTS: Mapping[str, Layer] = {
    "Conv 3×3, 64 channels": shaped(IMAGE, conv(64, (3, 3))),
    "Conv 3×3, 16 channels": shaped((1, 16, 128, 128), conv(16, (3, 3))),
    "Conv 5×5, 64 channels": shaped(IMAGE, conv(64, (5, 5))),
    "Conv 1×1, 256 channels": shaped(SMALL_IMAGE, conv(256, (1, 1))),
    "Conv 3×3, dilated": shaped(IMAGE, conv(64, (3, 3), dilations=[2, 2])),
    "Conv 3×3, 32 groups": shaped(SMALL_IMAGE, conv(256, (3, 3), group=32)),
    "Conv 3×3, depthwise": shaped(SMALL_IMAGE, conv(256, (3, 3), group=256)),
    "Conv 7×7, depthwise": shaped(IMAGE, conv(64, (7, 7), group=64)),
    "Conv 1-D": shaped((1, 256, 1024), conv(256, (3,))),
    "Conv 3-D": shaped((1, 16, 16, 32, 32), conv(16, (3, 3, 3))),
    "ConvTranspose 2×2": shaped(IMAGE, conv_transpose),
    "QLinearConv 3×3": shaped(IMAGE, quantized_conv),
    "MatMul 512": shaped(MATRIX, dense(512)),
    "MatMul 512, f64": shaped(MATRIX, dense(512, np.float64)),
    "MatMul 512, f16": shaped(MATRIX, dense(512, np.float16)),
    "MatMulInteger 512": shaped(MATRIX, quantized_dense),
    "MatMul, bottleneck": shaped(ROWS, bottleneck),
    "MatMul, 512 small ones": shaped((512, 8, 64), small_products),
    "MatMul, one row": shaped((64, 4096), one_row),
    "Einsum abc,cbd→adb": shaped(CUBE, einsum),
    "attention": shaped(MATRIX, attention),
    "attention, one query": shaped(MATRIX, attention_to_a_cache),
    "GRU": shaped(STEPS, recurrent("GRU", 3)),
    "GRU, linear before reset": shaped(STEPS, recurrent("GRU", 3, linear_before_reset=1)),
    "LSTM": shaped(STEPS, recurrent("LSTM", 4)),
    "RNN": shaped(STEPS, recurrent("RNN", 1)),
    "Softmax": shaped(ROWS, elementwise("Softmax", axis=-1)),
    "Softmax, middle axis": shaped(CUBE, elementwise("Softmax", axis=1)),
    "LayerNormalization": shaped(MATRIX, layer_norm(512)),
    "LayerNormalization, two axes": shaped((16, 128, 128), layer_norm(128, 128)),
    "InstanceNormalization": shaped(IMAGE, instance_norm),
    "LRN": shaped(IMAGE, elementwise("LRN", size=5)),
    "ReduceLogSumExp, first axis": shaped(MATRIX, minus_reduced("ReduceLogSumExp", 0)),
    "ReduceMax, last axis": shaped(MATRIX, minus_reduced("ReduceMax", 1)),
    "MaxPool 5×5": shaped(IMAGE, pool("MaxPool", 5)),
    "AveragePool 7×7": shaped(IMAGE, pool("AveragePool", 7)),
    "Pad, reflected": shaped(IMAGE, reflect),
    "Resize, nearest": shaped(IMAGE, there_and_back(mode="nearest")),
    "Resize, linear": shaped(IMAGE, there_and_back(mode="linear")),
    "Resize, cubic": shaped(IMAGE, there_and_back(mode="cubic")),
    "GridSample": shaped(IMAGE, grid_sample),
    "RoiAlign": shaped(IMAGE, roi_align),
    "DFT 256": shaped((512, 256, 2), elementwise("DFT", axis=1)),
    "TopK, all": shaped(ROWS, top_k(ROWS[1])),
    "TopK, 16": shaped(ROWS, top_k(16)),
    "ArgMax": shaped(MATRIX, arg_max),
    "CumSum, last axis": shaped(ROWS, cum_sum(1)),
    "CumSum, first axis": shaped(MATRIX, cum_sum(0)),
    "Gather, rows": shaped((4096, 64), gather_rows),
    "Gather, large table": shaped((16, 16384), embedding),
    "GatherElements": shaped(MATRIX, gather_elements),
    "ScatterND": shaped((4096, 64), scatter_rows),
    "ScatterElements, sums": shaped(MATRIX, scatter_elements),
    "Transpose": shaped(CUBE, elementwise("Transpose", perm=[2, 1, 0])),
    "DepthToSpace": shaped(IMAGE, elementwise("DepthToSpace", blocksize=2)),
    "GELU": gelu,
    "Mish": mish,
    "Pow": power,
    "Sin": elementwise("Sin"),
    "Tanh": elementwise("Tanh"),
}
