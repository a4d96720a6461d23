"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: numbers as short integers, a scale and a zero point.

    q = saturate(round(x / scale) + zero point)        x ≈ (q - zero point) · scale

Rounding is half to even. Scales and zero points belong to the whole tensor, to each slice along an axis, or to blocks
of an axis (`Granularity`). The expressions and the numpy functions below are what all quantised ops are made of; both
compute in f32, operation by operation, so that their integers are equal.

Types that native code does not have (4 and 2 bits, float8) are in `ops/host/quantize.py`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, UnaryOp, cast, const, equal, maximum, minimum, select, unary
from tilewright.ops.axes import normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import ONNX_DTYPES, Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

SHORT = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})
SCALES = frozenset({DType.F16, DType.BF16, DType.F32})


# ---------------------------------------------------------------------------------------------- one element, or many


def limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def clamped_whole(value: Expr, dtype: DType) -> Expr:
    """A float that is a whole number, as the nearest that a short integer may be. NaN becomes the least one."""
    low, high = (const(v, value.dtype) for v in limits(dtype))
    above = select(low < value, value, low)
    return select(above < high, above, high)


def saturated(value: Expr, dtype: DType) -> Expr:
    """The same, as a short integer."""
    return cast(dtype, cast(DType.I32, clamped_whole(value, dtype)))


def quantized(ratio: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """round(ratio) + zero point, saturated. The sum of floats is exact wherever it is in range."""
    whole = unary(UnaryOp.ROUND, ratio)
    return saturated(whole if zero is None else whole + cast(ratio.dtype, zero), dtype)


def quantized_array(ratio: Array, zero: Array | None, dtype: DType) -> Array:
    whole = np.rint(ratio)
    value = whole if zero is None else whole + zero.astype(ratio.dtype)
    low, high = limits(dtype)
    return np.where(np.isnan(value), low, np.clip(value, low, high)).astype(np.int32).astype(dtype.numpy)


def centred(x: Expr, zero: Expr | None) -> Expr:
    """x - zero point, as an i32."""
    wide = cast(DType.I32, x)
    return wide if zero is None else wide - cast(DType.I32, zero)


def centred_array(x: Array, zero: Array | None) -> Array:
    wide = x.astype(np.int32)
    return wide if zero is None else wide - zero.astype(np.int32)


def dequantized(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """(x - zero point) · scale, in f32."""
    return cast(DType.F32, centred(x, zero)) * cast(DType.F32, scale)


def dequantized_array(x: Array, scale: Array, zero: Array | None) -> Array:
    return centred_array(x, zero).astype(np.float32) * scale.astype(np.float32)


# ----------------------------------------------------------------------------------------------------- granularity


@dataclass(frozen=True, slots=True)
class Granularity:
    """What shares a scale: everything (no axis), a slice of the axis, or `block` slices of it."""

    axis: int | None = None
    block: int = 0

    @staticmethod
    def of(x: tuple[int, ...], scale: tuple[int, ...], axis: int, block: int) -> "Granularity":
        """That of a tensor and its scale; UserError if the shapes do not fit."""
        if block < 0:
            raise UserError(f"a block_size of {block}")
        if math.prod(scale) == 1 and len(scale) <= 1:
            return Granularity()
        along = normal_axis(0 if len(x) == 1 and axis == 1 else axis, len(x))
        fits = scale == x[along : along + 1]
        if block:
            fits = scale == (*x[:along], -(-x[along] // block), *x[along + 1 :])
        if not fits:
            raise UserError(f"a scale of shape {list(scale)} does not fit {list(x)} along axis {along}")
        return Granularity(along, block)

    def load(self, p: Buffer, i: Sequence[Expr]) -> Expr:
        """The scale or zero point of element i."""
        if self.axis is None:
            return p[(0,) * len(p.shape)]
        if not self.block:
            return p[i[self.axis]]
        return p[(*i[: self.axis], i[self.axis] // self.block, *i[self.axis + 1 :])]

    def spread(self, p: Array, shape: Sequence[int]) -> Array:
        """The scales or zero points of all elements of a tensor, or what broadcasts to them."""
        if self.axis is None:
            return p.reshape(())
        if not self.block:
            return p.reshape([n if d == self.axis else 1 for d, n in enumerate(shape)])
        return p.take(np.arange(shape[self.axis]) // self.block, self.axis)


def _check_parameters(op: Op, inputs: Sequence[TensorType], granularity: Granularity) -> None:
    x, scale, *zero = inputs
    if zero and (zero[0].shape != scale.shape and math.prod(zero[0].shape) * math.prod(scale.shape) != 1):
        raise op.misfit(inputs, "the zero point needs the shape of the scale")
    axis, block = granularity.axis, granularity.block
    if Granularity.of(x.shape, scale.shape, 0 if axis is None else axis, block) != granularity:
        raise op.misfit(inputs, f"the scale does not belong to axis {axis}")


def _granularity(node: OnnxNode) -> Granularity:
    x, scale = node.input(0), node.input(1)
    return Granularity.of(x.shape, scale.shape, node.integer("axis", 1), node.integer("block_size", 0))


# ------------------------------------------------------------------------------------------------------------- ops


@dataclass(frozen=True, slots=True)
class QuantizeLinear(Op):
    """x / scale is rounded to `precision` and then to a whole number."""

    onnx = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
    kind = Kind.ELEMENTWISE
    dtype: DType
    granularity: Granularity = Granularity()
    precision: DType = DType.F32

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        wanted, precision = node.integer("output_dtype", 0), node.integer("precision", 0)
        given = node.input(2).dtype if node.has(2) else None
        if wanted and wanted not in ONNX_DTYPES:
            raise OnHost("it gives elements that only the host computes with")
        dtype = given or (ONNX_DTYPES[wanted] if wanted else DType.U8)
        if wanted and ONNX_DTYPES[wanted] is not dtype:
            raise UserError(f"output_dtype is {ONNX_DTYPES[wanted]}, and the zero point is {dtype}")
        if precision and precision not in ONNX_DTYPES:
            raise UserError(f"precision is {precision}, which is no float type")
        wide = ONNX_DTYPES[precision] if precision else node.input(1).dtype
        return cls(dtype, _granularity(node), wide if wide.is_float else DType.F64), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, scale, *zero = inputs
        if any(t.dtype not in (*SCALES, DType.I32) for t in (x, scale)):
            raise self.misfit(inputs, "x and the scale must be f32, f16, bf16 or i32")
        if self.dtype not in SHORT or any(z.dtype is not self.dtype for z in zero):
            raise self.misfit(inputs, f"{self.dtype} is no type for quantised numbers with this zero point")
        if not self.precision.is_float:
            raise self.misfit(inputs, f"a precision of {self.precision}")
        _check_parameters(self, inputs, self.granularity)
        return (TensorType(self.dtype, x.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, scale, *zero = inputs
        wide = DType.F64 if self.precision is DType.F64 else DType.F32

        def element(*i: Expr) -> Expr:
            s = cast(self.precision, self.granularity.load(scale, i))
            ratio = cast(wide, cast(self.precision, x[i])) / cast(wide, s)
            zero_point = self.granularity.load(zero[0], i) if zero else None
            return quantized(cast(wide, cast(self.precision, ratio)), zero_point, self.dtype)

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, scale, *zero = inputs
        short, wide = self.precision.numpy, np.float64 if self.precision is DType.F64 else np.float32
        s = self.granularity.spread(scale, x.shape)
        with np.errstate(all="ignore"):
            ratio = x.astype(short).astype(wide) / s.astype(short).astype(wide)
            zero_point = self.granularity.spread(zero[0], x.shape) if zero else None
            return (quantized_array(ratio.astype(short).astype(wide), zero_point, self.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4) * 9
        scale, scales = np.array(0.1, np.float32), np.array([0.1, 0.03, 2.0], np.float32)
        yield cls.sample(x, scale)
        for dtype in (np.int8, np.uint8, np.int16, np.uint16):
            zeros = np.array([3, 0, 100], dtype)
            yield cls.sample(x, scale, zeros[0:1], opset=21)
            yield cls.sample(x, scales, zeros, opset=21)
        yield cls.sample(x, scales[:2], np.array([1, 2], np.int8), axis=-3, opset=13)
        ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, np.inf, -np.inf], np.float32)
        yield cls.sample(ties, np.array([1.0], np.float32), np.array([1], np.int8))
        yield cls.sample(ties, np.array(1.0, np.float32), np.array(255, np.uint8))
        blocks = abs(normal(rng, 2, 2, 4)) + 0.1
        yield cls.sample(x, blocks, axis=1, block_size=2, output_dtype=5, opset=21)
        yield cls.sample(x, blocks, np.full(blocks.shape, 7, np.uint8), axis=1, block_size=2, opset=21)
        for half in (np.float16, ml_dtypes.bfloat16):
            yield Sample(
                cls(DType.I8, precision=DType.of(np.dtype(half))), (x.astype(half), scale.astype(half))
            )
        yield cls.sample(x, scale, np.array(0, np.uint8), op_type="com.microsoft.QuantizeLinear", opset=1)
        yield cls.sample(np.array([5, -3, 70], np.int32), np.array(2.0, np.float32), opset=13)
        yield Sample(
            cls(DType.U8, precision=DType.F64), (np.array([5, 7, 9], np.int32), np.array(2, np.int32))
        )


@dataclass(frozen=True, slots=True)
class FakeQuantize(Op):
    """DequantizeLinear of QuantizeLinear, with one scale and zero point: inputs are x, the scale, and the zero point as
    a whole number in f32. Numbers that a byte stands for are floats all the way, of which 0 has no sign.
    """

    kind = Kind.ELEMENTWISE
    dtype: DType  # of the bytes

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3)
        x, *others = inputs
        if any(t.dtype is not DType.F32 for t in inputs) or any(math.prod(t.shape) != 1 for t in others):
            raise self.misfit(inputs, "takes f32, with one scale and zero point")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, *others = inputs
        scale, zero = (p[(0,) * len(p.shape)] for p in others)

        def element(*i: Expr) -> Expr:
            whole = unary(UnaryOp.ROUND, x[i] / scale) + zero
            return (clamped_whole(whole, self.dtype) - zero) * scale

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, scale, zero = (a if n == 0 else a.reshape(()) for n, a in enumerate(inputs))
        with np.errstate(all="ignore"):
            q = quantized_array(x / scale, zero, self.dtype).astype(np.float32)
            return ((q - zero) * scale,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, scale = normal(rng, 3, 5) * 9, np.array(0.1, np.float32)
        x[0] = [np.inf, -np.inf, np.nan, 0.05, -0.15]
        yield Sample(cls(DType.U8), (x, scale, np.array(100, np.float32)))
        yield Sample(cls(DType.I8), (x, scale, np.array(0, np.float32)))


@dataclass(frozen=True, slots=True)
class DequantizeLinear(Op):
    onnx = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
    kind = Kind.ELEMENTWISE
    dtype: DType
    granularity: Granularity = Granularity()

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        wanted = node.integer("output_dtype", 0)
        if wanted and wanted not in ONNX_DTYPES:
            raise UserError(f"output_dtype is {wanted}, which is no float type")
        dtype = ONNX_DTYPES[wanted] if wanted else node.input(1).dtype
        known = node.constant(2) if node.has(2) else None
        taken = (0, 1) if known is not None and not known.any() else node.present
        return cls(dtype, _granularity(node)), taken

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, scale, *zero = inputs
        if x.dtype not in (*SHORT, DType.I32) or any(z.dtype is not x.dtype for z in zero):
            raise self.misfit(inputs, "x and the zero point need one integer type of up to 32 bits")
        if scale.dtype not in SCALES or self.dtype not in SCALES:
            raise self.misfit(inputs, "the scale and the result must be f32, f16 or bf16")
        _check_parameters(self, inputs, self.granularity)
        return (TensorType(self.dtype, x.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, scale, *zero = inputs

        def element(*i: Expr) -> Expr:
            zero_point = self.granularity.load(zero[0], i) if zero else None
            return cast(self.dtype, dequantized(x[i], self.granularity.load(scale, i), zero_point))

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, scale, *zero = inputs
        zero_point = self.granularity.spread(zero[0], x.shape) if zero else None
        with np.errstate(all="ignore"):
            y = dequantized_array(x, self.granularity.spread(scale, x.shape), zero_point)
            return (np.asarray(y).astype(self.dtype.numpy),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        scale, scales = np.array(0.1, np.float32), np.array([0.1, 0.03, 2.0], np.float32)
        for dtype in (np.int8, np.uint8, np.int16, np.uint16):
            x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 3, 4)).astype(dtype)
            zeros = np.array([3, 0, 100], dtype)
            yield cls.sample(x, scale, zeros[0:1], opset=21)
            yield cls.sample(x, scales, zeros, opset=21)
        yield cls.sample(x, scale, opset=21)
        yield cls.sample(np.array([70000, -5], np.int32), np.array([0.5], np.float32))
        blocks = abs(normal(rng, 2, 2, 4)) + 0.1
        yield cls.sample(x.view(np.int16), blocks, axis=1, block_size=2, opset=21)
        yield cls.sample(x, blocks, np.full(blocks.shape, 7, x.dtype), axis=1, block_size=2, opset=21)
        for half in (np.float16, ml_dtypes.bfloat16):
            yield cls.sample(x.astype(np.uint8), scales.astype(half), zeros.astype(np.uint8), opset=21)
        yield cls.sample(x, scale, op_type="com.microsoft.DequantizeLinear", opset=1)


@dataclass(frozen=True, slots=True)
class DynamicQuantizeLinear(Op):
    """To u8, by the range of the values and 0. Gives the scale and the zero point, too."""

    onnx = ("DynamicQuantizeLinear",)
    kind = Kind.REDUCTION

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype is not DType.F32:
            raise self.misfit(inputs, "only f32")
        return (TensorType(DType.U8, x.shape), TensorType(DType.F32, ()), TensorType(DType.U8, ()))

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        scale, zero = dynamic_parameters(b, x, name, f"{name}_1", f"{name}_2")

        def element(*i: Expr) -> Expr:
            return quantized(x[i] / scale[()], zero[()], DType.U8)

        return (b.compute(name, x.shape, element), scale, zero)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            scale, zero = dynamic_parameters_of(x)
            return (quantized_array(x / scale, zero, DType.U8), scale, zero)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for x in (
            normal(rng, 2, 3),
            abs(normal(rng, 5)),
            -abs(normal(rng, 2, 2, 2)),
            np.zeros(3, np.float32),
        ):
            yield cls.sample(x, outputs=3)


def dynamic_parameters(
    b: FuncBuilder, x: Buffer, name: str, scale_name: str, zero_name: str
) -> tuple[Buffer, Buffer]:
    """Blocks for the scale and the zero point that bring the range of `x`, with 0 in it, to u8."""

    def whole(*i: Expr) -> Expr:
        return x[i]

    high = b.reduce(f"{name}_max", (), x.shape, whole, "max")
    low = b.reduce(f"{name}_min", (), x.shape, whole, "min")

    def step() -> Expr:
        top, bottom = maximum(high[()], 0.0), minimum(low[()], 0.0)
        return select(equal(top, bottom), const(1.0, DType.F32), (top - bottom) / 255.0)

    scale = b.compute(scale_name, (), step)

    def offset() -> Expr:
        return quantized(const(0.0, DType.F32) - minimum(low[()], 0.0) / scale[()], None, DType.U8)

    return scale, b.compute(zero_name, (), offset)


def dynamic_parameters_of(x: Array) -> tuple[Array, Array]:
    top, bottom = np.float32(x.max(initial=0)), np.float32(x.min(initial=0))
    scale = np.asarray(np.float32(1) if top == bottom else (top - bottom) / np.float32(255), np.float32)
    return scale, quantized_array(np.asarray(np.float32(0) - bottom / scale), None, DType.U8)


def real(value: float) -> Array:
    """A single f32, for samples."""
    return np.array(value, np.float32)
