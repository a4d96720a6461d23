"""QLinearMatMul and QLinearConv: contractions of quantised numbers, quantised again.

    y = saturate(round(sum · (scale of a · scale of b / scale of y)) + zero point of y)

The sum is exact, in i32 (`integer`). The factor is a block of its own, `<name>_scale`: scales are mostly constants, and
then it is computed at compile time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import load_broadcast, try_broadcast
from tilewright.ops.core.integer import (
    BYTES,
    Channels,
    aligned,
    aligned_array,
    channel_array,
    fits_matrix,
    integer_matmul,
    integer_matmul_array,
    load_aligned,
    load_channel,
    matmul_shape,
    optional_inputs,
    random_bytes,
    zero_point_is_needed,
)
from tilewright.ops.core.quantize import SCALES, quantized, quantized_array, real
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder


def wide(x: Expr) -> Expr:
    return cast(DType.F32, x)


def present_operands(node: OnnxNode, zero_points: Sequence[int]) -> tuple[bool, ...]:
    """Which inputs an op takes: those that are there, but for zero points that are known to be 0."""
    return tuple(
        zero_point_is_needed(node, i) if i in zero_points else node.has(i) for i in range(len(node.inputs))
    )


def taken(has: Sequence[bool]) -> tuple[int, ...]:
    return tuple(i for i, h in enumerate(has) if h)


@dataclass(frozen=True, slots=True)
class QLinearMatMul(Op):
    """Parameters belong to the whole matrix; those of the left one and of the result may belong to each row, those of
    the right one to each column.

    `has` says which of the inputs of the ONNX operator there are: zero points that are 0 are left out.
    """

    onnx = ("QLinearMatMul",)
    kind = Kind.CONTRACTION
    dtype: DType
    has: tuple[bool, ...] = (True,) * 8

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        has = present_operands(node, (2, 5, 7))
        return cls(node.input(7).dtype, has), taken(has)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, sum(self.has))
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = optional_inputs(self.has, inputs)
        if a is None or b is None or a_scale is None or b_scale is None or y_scale is None:
            raise self.misfit(inputs, "an operand or a scale is missing")
        for x, zero in ((a, a_zero), (b, b_zero)):
            if x.dtype not in BYTES or (zero is not None and zero.dtype is not x.dtype):
                raise self.misfit(inputs, "only i8 and u8, with zero points of the same type")
        if self.dtype not in BYTES or (y_zero is not None and y_zero.dtype is not self.dtype):
            raise self.misfit(inputs, "the result must be i8 or u8")
        if any(s.dtype not in SCALES for s in (a_scale, b_scale, y_scale)):
            raise self.misfit(inputs, "scales must be f32, f16 or bf16")
        shape = matmul_shape(a.shape, b.shape)
        if shape is None:
            raise self.misfit(inputs, "the shapes cannot be multiplied")
        parameters = [
            (a_zero, True, a.shape),
            (b_zero, False, b.shape),
            (a_scale, True, shape),
            (b_scale, False, shape),
            (y_scale, True, shape),
            (y_zero, True, shape),
        ]
        if not all(fits_matrix(*p) for p in parameters):
            raise self.misfit(inputs, "a scale or a zero point does not fit")
        return (TensorType(self.dtype, shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = optional_inputs(self.has, inputs)
        assert x and w and x_scale and w_scale and y_scale
        total = integer_matmul(b, x, w, x_zero, w_zero, name, f"{name}_matmul")
        shape = try_broadcast(
            [aligned(x_scale.shape, True), aligned(w_scale.shape, False), aligned(y_scale.shape, True)]
        )
        assert shape is not None

        def factor(*i: Expr) -> Expr:
            left, right = load_aligned(x_scale, True, i, shape), load_aligned(w_scale, False, i, shape)
            return wide(left) * wide(right) / wide(load_aligned(y_scale, True, i, shape))

        scale = b.compute(f"{name}_scale", shape, factor)

        def element(*i: Expr) -> Expr:
            zero = None if y_zero is None else load_aligned(y_zero, True, i, out.shape)
            return quantized(wide(total[i]) * load_broadcast(scale, i, out.shape), zero, self.dtype)

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = optional_inputs(self.has, inputs)
        assert x is not None and w is not None
        assert x_scale is not None and w_scale is not None and y_scale is not None
        total = integer_matmul_array(x, w, x_zero, w_zero)
        left, right, down = (
            aligned_array(s, rows).astype(np.float32)
            for s, rows in ((x_scale, True), (w_scale, False), (y_scale, True))
        )
        zero = None if y_zero is None else aligned_array(y_zero, True)
        return (quantized_array(total.astype(np.float32) * (left * right / down), zero, self.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        one = real(0.02)
        each = np.array([0.02, 0.01, 0.3, 0.005], np.float32)
        for left in (np.uint8, np.int8):
            for right in (np.uint8, np.int8):
                a, b = random_bytes(rng, left, 3, 5), random_bytes(rng, right, 5, 4)
                zero, other = np.array(7, left), np.array(3, right)
                yield cls.sample(a, one, zero, b, one, other, real(0.4), zero)
        yield cls.sample(a, one, zero, b, each, np.zeros(4, np.int8), real(0.4), np.array(0, np.int8))
        batch = random_bytes(rng, np.int8, 2, 3, 5)
        yield cls.sample(batch, one, zero, b, one, other, one, zero, runtime=range(8))
        half = [s.astype(np.float16) for s in (one, one, real(0.4))]
        yield cls.sample(a, half[0], zero, b, half[1], other, half[2], zero, opset=21)
        rows = np.array([0.1, 0.2, 0.3], np.float32)
        zeros = np.array([1, 2, 3], np.int8)
        yield Sample(
            cls(DType.I8), (a, rows, zeros, b, each, np.array([1, 2, 3, 4], np.int8), rows * 9, zeros)
        )


@dataclass(frozen=True, slots=True)
class QLinearConv(Op):
    """Scale and zero point of the weights belong to all, or to each output channel. The bias is i32, in units of
    scale of x · scale of w.

    `has` says which of the inputs of the ONNX operator there are: zero points that are 0 are left out.
    """

    onnx = ("QLinearConv",)
    kind = Kind.CONTRACTION
    dtype: DType
    channels: Channels
    has: tuple[bool, ...] = (True,) * 9

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        has = present_operands(node, (2, 5, 7))
        has = (*has, *(False,) * (9 - len(has)))
        return cls(node.input(7).dtype, Channels.from_onnx(node, node.input(3)), has), taken(has)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, sum(self.has))
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = optional_inputs(self.has, inputs)
        if x is None or w is None or x_scale is None or w_scale is None or y_scale is None:
            raise self.misfit(inputs, "an operand or a scale is missing")
        shape = self.channels.infer(self, inputs, x, w)
        self.channels.check_zero_point(self, inputs, x, x_zero, 1)
        self.channels.check_zero_point(self, inputs, w, w_zero, w.shape[0])
        self.channels.check_zero_point(self, inputs, TensorType(self.dtype, ()), y_zero, 1)
        if self.dtype not in BYTES:
            raise self.misfit(inputs, "the result must be i8 or u8")
        if any(s.dtype is not DType.F32 for s in (x_scale, w_scale, y_scale)):
            raise self.misfit(inputs, "scales must be f32")
        sizes = [(x_scale, 1), (y_scale, 1), (w_scale, w.shape[0])]
        if any(aligned(s.shape, False) not in ((), (n,)) for s, n in sizes):
            raise self.misfit(inputs, "a scale does not fit")
        if bias is not None and (bias.dtype is not DType.I32 or bias.shape != w.shape[:1]):
            raise self.misfit(inputs, f"the bias must be i32[{w.shape[0]}]")
        return (TensorType(self.dtype, shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = optional_inputs(self.has, inputs)
        assert x and w and x_scale and w_scale and y_scale
        total = self.channels.compute(b, x, w, x_zero, w_zero, out.shape, name, f"{name}_conv")

        def factor(*i: Expr) -> Expr:
            weight = w_scale[(0,) * len(w_scale.shape)] if w_scale.size == 1 else w_scale[i]
            return x_scale[(0,) * len(x_scale.shape)] * weight / y_scale[(0,) * len(y_scale.shape)]

        scale = b.compute(f"{name}_scale", aligned(w_scale.shape, False), factor)

        def element(*i: Expr) -> Expr:
            value: Expr = total[i]
            if bias is not None:
                value = value + bias[i[1]]
            zero = None if y_zero is None else y_zero[(0,) * len(y_zero.shape)]
            return quantized(wide(value) * load_channel(scale, i[1]), zero, self.dtype)

        axes = ["n", "o", *self.channels.window.axes()]
        return (b.compute(name, out.shape, element, axes=axes),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = optional_inputs(self.has, inputs)
        assert x is not None and w is not None
        assert x_scale is not None and w_scale is not None and y_scale is not None
        rank = len(out.shape) - 2
        total = self.channels.array(x, w, x_zero, w_zero, out.shape)
        if bias is not None:
            total = total + channel_array(bias, rank)
        scale = x_scale.reshape(()) * channel_array(w_scale, rank) / y_scale.reshape(())
        zero = None if y_zero is None else y_zero.reshape(())
        return (quantized_array(total.astype(np.float32) * scale, zero, self.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w = random_bytes(rng, np.uint8, 1, 2, 5, 4), random_bytes(rng, np.int8, 3, 2, 3, 3)
        one, each = real(0.02), np.array([0.02, 0.01, 0.3], np.float32)
        zero, none = np.array(7, np.uint8), np.array(0, np.int8)
        bias = rng.integers(-999, 999, 3).astype(np.int32)
        yield cls.sample(x, one, zero, w, one, none, real(0.8), zero)
        yield cls.sample(
            x, one, zero, w, each, np.zeros(3, np.int8), real(0.8), zero, bias, pads=[1, 1, 1, 1]
        )
        yield cls.sample(
            x, one, zero, w, one, none, real(0.18), zero, bias, strides=[2, 1], pads=[1, 0, 0, 2]
        )
        depthwise = random_bytes(rng, np.int8, 2, 1, 3, 3)
        yield cls.sample(x, one, zero, depthwise, one, none, real(0.18), zero, group=2, pads=[1, 1, 1, 1])
        yield cls.sample(x, one, zero, w, one, none, real(0.18), zero, bias, auto_pad="SAME_UPPER")
        yield cls.sample(
            random_bytes(rng, np.int8, 1, 2, 5, 4),
            one,
            np.array([-3], np.int8),
            w,
            one,
            none,
            real(0.4),
            np.array([5], np.int8),
            runtime=range(8),
        )
        unsigned = random_bytes(rng, np.uint8, 3, 2, 3, 3)
        yield cls.sample(x, one, zero, unsigned, one, np.array(99, np.uint8), real(1.98), zero)
        yield cls.sample(
            random_bytes(rng, np.uint8, 2, 2, 7),
            one,
            zero,
            w[:, :, 0].copy(),
            one,
            none,
            real(0.18),
            zero,
            pads=[1, 1],
        )
