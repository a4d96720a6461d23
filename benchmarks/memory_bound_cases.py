"""Groups of operators that memory bounds, as ONNX models: those of well-known networks, in and out of cache."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto, helper

from examples.models import Net

Shape: TypeAlias = Sequence[int]
Write: TypeAlias = Callable[[Net], str]


@dataclass(frozen=True, slots=True)
class Case:
    """`kind` sorts the table. What must be read and written is what its inputs and outputs have."""

    kind: str
    inputs: Mapping[str, Shape]
    output: Shape
    write: Write
    read: int | None = None  # elements that must be read; all, if it does not say
    is_open: bool = (
        False  # is the output i64, with as many rows as data says? Then `output` is the most there may be
    )
    # Of ONNX Runtime, which results are compared with, against float64, over the largest output: it is not held
    # against others.
    reference_error: float = 0.0

    @property
    def read_bytes(self) -> int:
        return 4 * (sum(map(math.prod, self.inputs.values())) if self.read is None else self.read)

    @property
    def written_bytes(self) -> int:
        return 4 * math.prod(self.output)

    def build(self) -> ModelProto:
        net = Net(0)
        self.write(net)
        model = net.model("group", dict(self.inputs), {"y": self.output})
        if self.is_open:
            shape = [None, *self.output[1:]]
            model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, shape))
        return model


def one(kind: str, shape: Shape, write: Write, output: Shape | None = None) -> Case:
    """A group of one input x."""
    return Case(kind, {"x": shape}, shape if output is None else output, write)


# ------------------------------------------------------------------------------------------------------ normalisation


def softmax(shape: Shape, axis: int = -1, op: str = "Softmax") -> Case:
    return one("softmax", shape, lambda net: net.op(op, "x", axis=axis))


def masked_softmax(heads: int, queries: int, keys: int) -> Case:
    """Scores are scaled and masked, as between the two MatMuls of attention."""

    def write(net: Net) -> str:
        scaled = net.op("Mul", "x", net.scalar("scale", 0.125))
        return net.op("Softmax", net.op("Add", scaled, "mask"), axis=-1)

    return Case(
        "softmax", {"x": (heads, queries, keys), "mask": (1, queries, keys)}, (heads, queries, keys), write
    )


def layer_norm(rows: int, columns: int, residual: bool = False) -> Case:
    def write(net: Net) -> str:
        x = net.op("Add", "x", "r") if residual else "x"
        gamma, beta = net.normal("gamma", (columns,), 0.1, 1.0), net.normal("beta", (columns,), 0.1)
        return net.op("LayerNormalization", x, gamma, beta, axis=-1)

    shape = (rows, columns)
    return Case("norm", {"x": shape, "r": shape} if residual else {"x": shape}, shape, write)


def rms_norm(rows: int, columns: int) -> Case:
    def write(net: Net) -> str:
        mean = net.op("ReduceMean", net.op("Mul", "x", "x"), net.ints("axes", -1), keepdims=1)
        root = net.op("Sqrt", net.op("Add", mean, net.scalar("epsilon", 1e-6)))
        return net.op("Mul", net.op("Div", "x", root), net.normal("gamma", (columns,), 0.1, 1.0))

    return one("norm", (rows, columns), write)


def group_norm_gelu(channels: int, length: int, groups: int) -> Case:
    """As in speech models: statistics of each group over the whole signal."""

    def write(net: Net) -> str:
        cut = net.op("Reshape", "x", net.ints("groups", 1, groups, channels // groups * length))
        scale, bias = net.constant("scale", np.ones(groups, np.float32)), net.scalar("zero", 0.0)
        zeros = net.op("Expand", bias, net.ints("count", groups))
        normal = net.op("InstanceNormalization", cut, scale, zeros)
        back = net.op("Reshape", normal, net.ints("whole", 1, channels, length))
        gamma, beta = net.normal("gamma", (channels, 1), 0.1, 1.0), net.normal("beta", (channels, 1), 0.1)
        return gelu_of(net, net.op("Add", net.op("Mul", back, gamma), beta))

    return one("norm", (1, channels, length), write)


def instance_norm(channels: int, size: int) -> Case:
    def write(net: Net) -> str:
        scale, bias = net.normal("scale", (channels,), 0.1, 1.0), net.normal("bias", (channels,), 0.1)
        return net.op("InstanceNormalization", "x", scale, bias)

    return one("norm", (1, channels, size, size), write)


# -------------------------------------------------------------------------------------------------------- elementwise


def gelu_of(net: Net, x: str) -> str:
    half = net.op("Mul", x, net.scalar("half", 0.5))
    erf = net.op("Erf", net.op("Mul", x, net.scalar("root", math.sqrt(0.5))))
    return net.op("Mul", half, net.op("Add", erf, net.scalar("one", 1.0)))


def bias_gelu(rows: int, columns: int) -> Case:
    def write(net: Net) -> str:
        return gelu_of(net, net.op("Add", "x", net.normal("bias", (columns,), 0.1)))

    return one("elementwise", (rows, columns), write)


def tanh_gelu(rows: int, columns: int) -> Case:
    def write(net: Net) -> str:
        cube = net.op("Mul", net.op("Mul", "x", "x"), "x")
        inner = net.op("Add", "x", net.op("Mul", cube, net.scalar("cubic", 0.044715)))
        tanh = net.op("Tanh", net.op("Mul", inner, net.scalar("scale", math.sqrt(2 / math.pi))))
        half = net.op("Mul", "x", net.scalar("half", 0.5))
        return net.op("Mul", half, net.op("Add", tanh, net.scalar("one", 1.0)))

    return one("elementwise", (rows, columns), write)


def swiglu(rows: int, columns: int) -> Case:
    shape = (rows, columns)

    def write(net: Net) -> str:
        return net.op("Mul", net.op("Mul", "g", net.op("Sigmoid", "g")), "u")

    return Case("elementwise", {"g": shape, "u": shape}, shape, write)


def arithmetic(elements: int) -> Case:
    """A chain over three operands."""
    shape = (elements,)

    def write(net: Net) -> str:
        y = net.op("Mul", net.op("Add", "a", "b"), "c")
        return net.op("Relu", net.op("Sub", y, "a"))

    return Case("elementwise", {"a": shape, "b": shape, "c": shape}, shape, write)


def batch_norm_relu(channels: int, size: int) -> Case:
    def write(net: Net) -> str:
        stats = [net.normal(n, (channels,), 0.1, m) for n, m in (("s", 1), ("b", 0), ("mean", 0), ("v", 1))]
        return net.op("Relu", net.op("BatchNormalization", "x", *stats))

    return one("elementwise", (1, channels, size, size), write)


def quantize(elements: int) -> Case:
    """To bytes and back, with a ReLU between."""

    def write(net: Net) -> str:
        scale, zero = net.scalar("scale", 0.02), net.constant("zero", np.array(128, np.uint8))
        q = net.op("QuantizeLinear", "x", scale, zero)
        y = net.op("Relu", net.op("DequantizeLinear", q, scale, zero))
        return net.op("DequantizeLinear", net.op("QuantizeLinear", y, scale, zero), scale, zero)

    return one("elementwise", (elements,), write)


def rotary(heads: int, tokens: int, size: int) -> Case:
    half = size // 2

    def write(net: Net) -> str:
        first, second = (
            net.op("Slice", "x", net.ints("from", a), net.ints("to", b), net.ints("axis", 2))
            for a, b in ((0, half), (half, size))
        )
        rotated = net.op("Concat", net.op("Neg", second), first, axis=2)
        cos, sin = (net.uniform(n, (1, tokens, size), -1, 1) for n in ("cos", "sin"))
        return net.op("Add", net.op("Mul", "x", cos), net.op("Mul", rotated, sin))

    return one("elementwise", (heads, tokens, size), write)


# --------------------------------------------------------------------------------------------------------- reductions


def reduce(shape: Shape, axes: Sequence[int], op: str = "ReduceSum") -> Case:
    kept = tuple(n for d, n in enumerate(shape) if d not in axes)
    return one("reduction", shape, lambda net: net.op(op, "x", net.ints("axes", *axes), keepdims=0), kept)


def arg_max(rows: int, columns: int) -> Case:
    def write(net: Net) -> str:
        return net.op("Cast", net.op("ArgMax", "x", axis=1, keepdims=0), to=1)

    return one("reduction", (rows, columns), write, (rows,))


def cumulative_sum(shape: Shape, axis: int) -> Case:
    return one("reduction", shape, lambda net: net.op("CumSum", "x", net.constant("axis", np.array(axis))))


# ONNX Runtime 1.31 takes Bluestein's algorithm in float32 for lengths that are no powers of two: 0.9e-4 to 1.2e-4 were
# measured for 400, where ours and numpy's in float64 differ by 2e-7.
_BLUESTEIN_ERROR = 2e-4


def fourier(signals: int, length: int, onesided: bool = False) -> Case:
    """Of real signals: all frequencies, or the half that the other mirrors."""
    results = length // 2 + 1 if onesided else length
    case = one(
        "reduction",
        (signals, length, 1),
        lambda net: net.op("DFT", "x", axis=1, onesided=int(onesided)),
        (signals, results, 2),
    )
    return case if length.bit_count() == 1 else replace(case, reference_error=_BLUESTEIN_ERROR)


def pool(op: str, channels: int, size: int, window: int, stride: int) -> Case:
    out = (size + 2 * (window // 2) - window) // stride + 1

    def write(net: Net) -> str:
        pads = [window // 2] * 4
        return net.op(op, "x", kernel_shape=[window] * 2, strides=[stride] * 2, pads=pads)

    return one("reduction", (1, channels, size, size), write, (1, channels, out, out))


# ----------------------------------------------------------------------------------------------------------- movement


def transpose(shape: Shape, perm: Sequence[int], add: bool = False) -> Case:
    moved = tuple(shape[d] for d in perm)

    def write(net: Net) -> str:
        y = net.op("Transpose", "x", perm=list(perm))
        return net.op("Add", y, "z") if add else y

    return Case("movement", {"x": shape, "z": moved} if add else {"x": shape}, moved, write)


def gather(rows: int, columns: int, count: int, axis: int = 0) -> Case:
    """Rows of a table, or columns, between which lie others: of these every line is touched."""
    out = (count, columns) if axis == 0 else (rows, count)

    def write(net: Net) -> str:
        at = np.random.default_rng(0).integers(0, (rows, columns)[axis], count)
        return net.op("Gather", "x", net.constant("at", at), axis=axis)

    return Case("movement", {"x": (rows, columns)}, out, write, count * columns if axis == 0 else None)


def gather_elements(rows: int, columns: int, count: int, axis: int) -> Case:
    """Single elements: each has an index of its own."""
    out = (count, columns) if axis == 0 else (rows, count)

    def write(net: Net) -> str:
        at = np.random.default_rng(0).integers(0, (rows, columns)[axis], out)
        return net.op("GatherElements", "x", net.constant("at", at), axis=axis)

    return Case("movement", {"x": (rows, columns)}, out, write)


def gather_nd(shape: Shape, count: int, depth: int) -> Case:
    """Slices, or single elements if there is an index for every axis."""
    out = (count, *shape[depth:])

    def write(net: Net) -> str:
        rng = np.random.default_rng(0)
        at = np.stack([rng.integers(0, n, count) for n in shape[:depth]], axis=1)
        return net.op("GatherND", "x", net.constant("at", at))

    return Case("movement", {"x": shape}, out, write, math.prod(out))


def scatter_rows(rows: int, columns: int, count: int) -> Case:
    """Rows of a table that are replaced."""

    def write(net: Net) -> str:
        at = np.random.default_rng(0).permutation(rows)[:count, None]
        return net.op("ScatterND", "x", net.constant("at", at), "u")

    return Case("movement", {"x": (rows, columns), "u": (count, columns)}, (rows, columns), write)


def scatter_elements(rows: int, columns: int, count: int, axis: int) -> Case:
    updates = (count, columns) if axis == 0 else (rows, count)

    def write(net: Net) -> str:
        at = np.random.default_rng(0).integers(0, (rows, columns)[axis], updates)
        return net.op("ScatterElements", "x", net.constant("at", at), "u", axis=axis)

    return Case("movement", {"x": (rows, columns), "u": updates}, (rows, columns), write)


def append(heads: int, tokens: int, size: int) -> Case:
    """A token to a cache of keys."""
    inputs = {"x": (1, heads, tokens, size), "k": (1, heads, 1, size)}
    return Case(
        "movement", inputs, (1, heads, tokens + 1, size), lambda net: net.op("Concat", "x", "k", axis=2)
    )


def windows(size: int, channels: int, window: int) -> Case:
    """An image cut into windows, as Swin does."""
    n = size // window

    def write(net: Net) -> str:
        cut = net.op("Reshape", "x", net.ints("cut", n, window, n, window, channels))
        moved = net.op("Transpose", cut, perm=[0, 2, 1, 3, 4])
        return net.op("Reshape", moved, net.ints("flat", n * n, window * window, channels))

    return one("movement", (size, size, channels), write, (n * n, window * window, channels))


def resize(channels: int, size: int, mode: str = "linear") -> Case:
    def write(net: Net) -> str:
        return net.op("Resize", "x", "", net.constant("by", np.array([1, 1, 2, 2], np.float32)), mode=mode)

    return one("movement", (1, channels, size, size), write, (1, channels, 2 * size, 2 * size))


def grid_sample(channels: int, size: int) -> Case:
    """The grid is an input, as one that a network predicts."""
    inputs = {"x": (1, channels, size, size), "grid": (1, size, size, 2)}

    def write(net: Net) -> str:
        return net.op("GridSample", "x", "grid", mode="bilinear", padding_mode="zeros")

    return Case("movement", inputs, (1, channels, size, size), write)


def roi_align(channels: int, height: int, width: int, boxes: int) -> Case:
    size = min(height, width)

    def write(net: Net) -> str:
        rng = np.random.default_rng(0)
        corners = rng.uniform(0, size / 2, (boxes, 2))
        rois = np.concatenate([corners, corners + rng.uniform(4, size / 2, (boxes, 2))], axis=1)
        where = net.constant("batch", np.zeros(boxes, np.int64))
        rois_name = net.constant("rois", rois.astype(np.float32))
        return net.op("RoiAlign", "x", rois_name, where, output_height=7, output_width=7, sampling_ratio=2)

    return one("movement", (1, channels, height, width), write, (boxes, channels, 7, 7))


# ------------------------------------------------------------------------------------------------------------ ordering


def top_k(rows: int, columns: int, k: int) -> Case:
    """The values alone; the indices are computed too."""

    def write(net: Net) -> str:
        values = net.op("TopK", "x", net.ints("k", k), axis=1)
        net.spare_output()
        return values

    return one("ordering", (rows, columns), write, (rows, k))


def suppression(classes: int, boxes: int, most: int, least: float) -> Case:
    """Boxes of a detector, and normally distributed scores of each class: those up to `least` do not count."""

    def write(net: Net) -> str:
        rng = np.random.default_rng(0)
        centres, sizes = rng.uniform(0, 1, (1, boxes, 2)), rng.uniform(0.02, 0.3, (1, boxes, 2))
        corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=2)
        where = net.constant("boxes", corners.astype(np.float32))
        limits = net.scalar("overlap", 0.5), net.scalar("least", least)
        return net.op("NonMaxSuppression", where, "x", net.ints("most", most), *limits)

    shape = (1, classes, boxes)
    return Case("ordering", {"x": shape}, (classes * most, 3), write, is_open=True)


def row_attention(key_heads: int, group: int, keys: int, size: int) -> Case:
    """One query row for each of `group` heads that share keys and values: decoding with a long cache."""
    inputs = {
        "q": (key_heads, group, size),
        "k": (key_heads, keys, size),
        "v": (key_heads, keys, size),
    }

    def write(net: Net) -> str:
        scores = net.op("MatMul", "q", net.op("Transpose", "k", perm=[0, 2, 1]))
        weights = net.op("Softmax", net.op("Mul", scores, net.scalar("scale", size**-0.5)), axis=-1)
        return net.op("MatMul", weights, "v")

    return Case("attention", inputs, (key_heads, group, size), write)


CASES: Mapping[str, Case] = {
    "softmax_1024x1024": softmax((1024, 1024)),
    "softmax_12x128x128": softmax((12, 128, 128)),
    "softmax_1x50257": softmax((1, 50257)),
    "softmax_4096x4096": softmax((4096, 4096)),
    "softmax_first_axis_512x1000": softmax((512, 1000), axis=0),
    "log_softmax_256x32000": softmax((256, 32000), op="LogSoftmax"),
    "masked_softmax_12x512x512": masked_softmax(12, 512, 512),
    "layernorm_128x768": layer_norm(128, 768),
    "layernorm_4096x1024": layer_norm(4096, 1024),
    "residual_layernorm_128x768": layer_norm(128, 768, residual=True),
    "rmsnorm_512x4096": rms_norm(512, 4096),
    "groupnorm_gelu_512x3199": group_norm_gelu(512, 3199, 512),
    "instancenorm_64x56x56": instance_norm(64, 56),
    "bias_gelu_erf_128x3072": bias_gelu(128, 3072),
    "bias_gelu_erf_197x3072": bias_gelu(197, 3072),
    "gelu_tanh_128x3072": tanh_gelu(128, 3072),
    "swiglu_128x11008": swiglu(128, 11008),
    "arithmetic_1M": arithmetic(1 << 20),
    "arithmetic_64M": arithmetic(1 << 26),
    "batchnorm_relu_64x112x112": batch_norm_relu(64, 112),
    "quantize_dequantize_1M": quantize(1 << 20),
    "rotary_32x128x128": rotary(32, 128, 128),
    "sum_first_axis_1024x1024": reduce((1024, 1024), (0,)),
    "sum_last_axis_1024x1024": reduce((1024, 1024), (1,)),
    "sum_first_axis_16384x1024": reduce((16384, 1024), (0,)),
    "sum_middle_64x1000x96": reduce((64, 1000, 96), (1,)),
    "mean_pixels_8x512x7x7": reduce((8, 512, 7, 7), (2, 3), "ReduceMean"),
    "argmax_128x32000": arg_max(128, 32000),
    "cumsum_first_axis_1024x1024": cumulative_sum((1024, 1024), 0),
    "cumsum_last_axis_1024x1024": cumulative_sum((1024, 1024), 1),
    "cumsum_middle_16x1024x64": cumulative_sum((16, 1024, 64), 1),
    "cumsum_1x1M": cumulative_sum((1, 1 << 20), 1),
    "dft_1x1024": fourier(1, 1024),
    "dft_16x1024": fourier(16, 1024),
    "dft_16x400": fourier(16, 400),
    "dft_onesided_16x400": fourier(16, 400, onesided=True),
    "maxpool_3x3s2_64x112x112": pool("MaxPool", 64, 112, 3, 2),
    "maxpool_5x5_128x20x20": pool("MaxPool", 128, 20, 5, 1),
    "transpose_add_1024": transpose((1024, 1024), (1, 0), add=True),
    "transpose_8192": transpose((8192, 8192), (1, 0)),
    "nchw_to_nhwc_64x56x56": transpose((1, 64, 56, 56), (0, 2, 3, 1)),
    "split_heads_512x12x64": transpose((512, 12, 64), (1, 0, 2)),
    "gather_rows_30522x768": gather(30522, 768, 128),
    "gather_4096_rows_30522x768": gather(30522, 768, 4096),
    "gather_columns_1024x1024": gather(1024, 1024, 512, axis=1),
    "gather_elements_first_axis_1024x1024": gather_elements(1024, 1024, 1024, axis=0),
    "gather_elements_last_axis_1024x1024": gather_elements(1024, 1024, 1024, axis=1),
    "gather_nd_elements_1024x1024": gather_nd((1024, 1024), 1 << 18, 2),
    "gather_nd_slices_64x64x256": gather_nd((64, 64, 256), 4096, 2),
    "scatter_rows_4096x768": scatter_rows(4096, 768, 512),
    "scatter_elements_1024x1024": scatter_elements(1024, 1024, 256, axis=1),
    "cache_append_8x4095x128": append(8, 4095, 128),
    "windows_56x56x96": windows(56, 96, 7),
    "resize_2x_64x56x56": resize(64, 56),
    "resize_nearest_2x_128x40x40": resize(128, 40, "nearest"),
    "grid_sample_16x128x128": grid_sample(16, 128),
    "grid_sample_64x56x56": grid_sample(64, 56),
    "grid_sample_3x512x512": grid_sample(3, 512),
    "roi_align_100_64x50x50": roi_align(64, 50, 50, 100),
    "roi_align_300_256x50x68": roi_align(256, 50, 68, 300),
    "topk_whole_rows_64x1000": top_k(64, 1000, 1000),
    "topk_whole_rows_256x100": top_k(256, 100, 100),
    "topk_whole_rows_1x50000": top_k(1, 50000, 50000),
    "topk_16_128x1000": top_k(128, 1000, 16),
    "topk_16_16x8400": top_k(16, 8400, 16),
    "topk_16_1x50000": top_k(1, 50000, 16),
    "topk_300_1x8400": top_k(1, 8400, 300),
    "nms_1x1x1000": suppression(1, 1000, 100, 0.0),
    "nms_1x1x8400": suppression(1, 8400, 300, 1.0),
    "nms_1x80x8400": suppression(80, 8400, 100, 2.0),
    "row_attention_8x8_4096x128": row_attention(8, 8, 4096, 128),
}
