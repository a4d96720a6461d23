"""MatMuls of quantised matrices of com.microsoft. Sums of bytes are exact, in i32; weights of a few bits are unpacked
at compile time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, binary, cast, const, maximum, minimum
from tilewright.ops.axes import FLOATS, accumulator, narrow
from tilewright.ops.compositeop import Composite, CompositeBody, Term
from tilewright.ops.contrib.quant import ONNX_NUMBERS
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.integer import optional_inputs, random_bytes
from tilewright.ops.core.quantize import real
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder

_DOMAIN = "com.microsoft"


class MatMulIntegerToFloat(Composite):
    """The right matrix may have a scale and a zero point for each column."""

    onnx = ("com.microsoft.MatMulIntegerToFloat",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        total = body.op("MatMulInteger", body[0], body[1], body.get(4), body.get(5), dtype=DType.I32)
        return (_scaled(body, total, body[2] * body[3], body.get(6)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b = random_bytes(rng, np.uint8, 2, 3, 5), random_bytes(rng, np.int8, 5, 4)
        one, each, bias = real(0.02), abs(normal(rng, 4)), normal(rng, 4)
        zero, zeros = np.array(7, np.uint8), np.array([1, 2, 3, 4], np.int8)
        for inputs in (
            (a, b, one, one),
            (a, b, one, each, zero, zeros, bias),
            (a, b, one, one, zero, None, bias),
            (a, b.view(np.uint8), one, one, zero, np.array(99, np.uint8)),
        ):
            yield HostSample("MatMulIntegerToFloat", inputs, domain=_DOMAIN)


class DynamicQuantizeMatMul(Composite):
    """The left matrix is quantised by the range of its values."""

    onnx = ("com.microsoft.DynamicQuantizeMatMul",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        short, scale, zero = body.ops("DynamicQuantizeLinear", 3, body[0])
        total = body.op("MatMulInteger", short, body[1], zero, body.get(3), dtype=DType.I32)
        return (_scaled(body, total, scale * body[2], body.get(4)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b, bias = normal(rng, 2, 3, 5), random_bytes(rng, np.int8, 5, 4), normal(rng, 4)
        each, zeros = abs(normal(rng, 4)), np.array([1, 2, 3, 4], np.int8)
        for inputs in ((a, b, real(0.02)), (a, b, each, zeros, bias), (a, b, real(0.02), None, bias)):
            yield HostSample("DynamicQuantizeMatMul", inputs, domain=_DOMAIN)


class QGemm(Composite):
    """alpha · A' B' + C, where A' is A or its transpose and C is i32, in units of the scale of the product. Without a
    scale of the result it is f32."""

    onnx = ("com.microsoft.QGemm",)

    @classmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        a, b = (
            body.transpose(body[i], 1, 0) if node.integer(side, 0) else body[i]
            for i, side in ((0, "transA"), (3, "transB"))
        )
        total = body.op("MatMulInteger", a, b, body.get(2), body.get(5), dtype=DType.I32)
        bias = body.get(6)
        total = total if bias is None else total + bias
        scale = body[1] * node.real("alpha", 1.0) * body[4]
        down, zero = body.get(7), body.get(8)
        if down is None:
            return (_scaled(body, total, scale, None),)
        dtype = a.dtype if zero is None else zero.dtype
        ratio = _scaled(body, total, scale / down, None)
        one = body.constant(real(1.0))
        return (body.op("QuantizeLinear", ratio, one, zero, dtype=dtype, output_dtype=ONNX_NUMBERS[dtype]),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        a, b = random_bytes(rng, np.uint8, 3, 5), random_bytes(rng, np.int8, 5, 4)
        bias = rng.integers(-999, 999, 4).astype(np.int32)
        left = (a, real(0.02), np.array(7, np.uint8))
        right = (b, real(0.03), np.array(2, np.int8))
        result = (real(0.2), np.array(100, np.uint8))
        each = (b, np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.array([0, 1, 2, 3], np.int8))
        yield HostSample("QGemm", (*left, *right, bias, *result), domain=_DOMAIN)
        yield HostSample("QGemm", (*left, *each, bias, *result), domain=_DOMAIN)
        yield HostSample("QGemm", (*left, *right, bias), {"alpha": 0.5}, domain=_DOMAIN)
        transposed = ((a.T.copy(), *left[1:]), (b.T.copy(), *right[1:]))
        yield HostSample(
            "QGemm", (*transposed[0], *transposed[1]), {"transA": 1, "transB": 1}, domain=_DOMAIN
        )


def _scaled(body: CompositeBody, total: Term, scale: Term, bias: Term | None) -> Term:
    value = body.cast(total, DType.F32) * scale
    return value if bias is None else value + bias


def unpacked(byte: Expr, i: Expr, bits: int) -> Expr:
    """Number i of a run of numbers of `bits` bits, from the byte that holds it. The first is in the low bits."""
    each = 8 // bits
    if each == 1:
        return byte
    shifted = binary(BinaryOp.SHR, byte, cast(DType.U8, i % each * bits))
    return binary(BinaryOp.AND, shifted, const((1 << bits) - 1, DType.U8))


def unpacked_array(packed: Array, bits: int) -> Array:
    """All numbers of runs along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class MatMulNBits(Op):
    """A times the transpose of weights of `bits` bits, packed into bytes with the first in the low bits. A row of them
    has a scale and a zero point for each block of `block` weights.

    Zero points are packed like the weights, or floats; without them it is the middle of the range. `groups`: an input
    gives the number of the block for each column of A.
    """

    onnx = ("com.microsoft.MatMulNBits",)
    kind = Kind.CONTRACTION
    rows: int  # of the weights
    columns: int
    bits: int
    block: int
    has: tuple[bool, bool, bool]  # zero points, groups, bias
    accuracy: int = 0  # 4: A may be brought to bytes, by blocks of its rows

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        has = (node.has(3), node.has(4), node.has(5))
        shape = (
            node.integer("N", 0),
            node.integer("K", 0),
            node.integer("bits", 4),
            node.integer("block_size", 0),
        )
        return cls(*shape, has, node.integer("accuracy_level", 0)), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3 + sum(self.has))
        a, w, scale, zero, groups, bias = optional_inputs((True, True, True, *self.has), inputs)
        assert a is not None and w is not None and scale is not None
        if self.bits not in (2, 4, 8) or self.block < 16 or self.block & (self.block - 1):
            raise self.misfit(inputs, f"blocks of {self.block} weights of {self.bits} bits")
        if min(self.rows, self.columns) < 1:
            raise self.misfit(inputs, f"weights of {self.rows} by {self.columns}")
        count = self._blocks
        if w.dtype is not DType.U8 or w.shape != (self.rows, count, self.block * self.bits // 8):
            raise self.misfit(
                inputs, f"the weights must be u8{[self.rows, count, self.block * self.bits // 8]}"
            )
        if a.dtype not in FLOATS or not a.rank or a.shape[-1] != self.columns or scale.dtype is not a.dtype:
            raise self.misfit(inputs, f"A must have {self.columns} columns, and scales of its type")
        if scale.shape not in ((self.rows * count,), (self.rows, count)):
            raise self.misfit(inputs, f"there must be {self.rows * count} scales")
        if zero is not None:
            each = self._zero_bytes if zero.dtype is DType.U8 else count
            if zero.dtype not in (DType.U8, a.dtype) or zero.shape not in (
                (self.rows * each,),
                (self.rows, each),
            ):
                raise self.misfit(inputs, "the zero points do not fit")
        if groups is not None and (groups.dtype is not DType.I32 or groups.shape != (self.columns,)):
            raise self.misfit(inputs, f"the groups must be i32[{self.columns}]")
        if bias is not None and (bias.dtype is not a.dtype or bias.shape != (self.rows,)):
            raise self.misfit(inputs, f"the bias must have {self.rows} elements of the type of A")
        return (TensorType(a.dtype, (*a.shape[:-1], self.rows)),)

    @property
    def _blocks(self) -> int:
        return -(-self.columns // self.block)

    @property
    def _zero_bytes(self) -> int:
        """The zero points of a row fill whole bytes."""
        return -(-self._blocks * self.bits // 8)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        a, w, scale, zero, groups, bias = optional_inputs((True, True, True, *self.has), inputs)
        assert a and w and scale
        wide = accumulator(a.dtype)

        def weight(k: Expr, n: Expr) -> Expr:
            place = k // self.block
            packed = unpacked(w[n, place, k % self.block * self.bits // 8], k % self.block, self.bits)
            if groups is not None:
                place = minimum(maximum(cast(DType.I64, groups[k]), 0), self._blocks - 1)
            middle = cast(wide, packed) - self._zero(zero, n, place, wide)
            return cast(a.dtype, middle * cast(wide, _row(scale, n, place, self._blocks)))

        weights = b.compute(f"{name}_w", (self.columns, self.rows), weight)
        if bias is None:
            return MatMul().compute(b, (a, weights), name)
        (total,) = MatMul().compute(b, (a, weights), f"{name}_matmul")
        return (
            b.compute(
                name,
                out.shape,
                lambda *i: cast(a.dtype, cast(wide, total[i]) + cast(wide, bias[i[-1]])),
            ),
        )

    def _zero(self, zero: Buffer | None, n: Expr, place: Expr, wide: DType) -> Expr:
        if zero is None:
            return const(1 << (self.bits - 1), wide)
        if zero.dtype is not DType.U8:
            return cast(wide, _row(zero, n, place, self._blocks))
        byte = _row(zero, n, place * self.bits // 8, self._zero_bytes)
        return cast(wide, unpacked(byte, place, self.bits))

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, w, scale, zero, groups, bias = optional_inputs((True, True, True, *self.has), inputs)
        assert a is not None and w is not None and scale is not None
        place = np.arange(self.columns) // self.block if groups is None else groups.clip(0, self._blocks - 1)
        codes = unpacked_array(w.reshape(self.rows, -1), self.bits)[:, : self.columns].astype(np.float32)
        if zero is None:
            middle = np.full((self.rows, self._blocks), 1 << (self.bits - 1), np.float32)
        elif zero.dtype == np.uint8:
            middle = unpacked_array(zero.reshape(self.rows, -1), self.bits)[:, : self._blocks].astype(
                np.float32
            )
        else:
            middle = zero.reshape(self.rows, -1).astype(np.float32)
        steps = scale.reshape(self.rows, -1).astype(np.float32)
        weights = ((codes - middle[:, place]) * steps[:, place]).astype(a.dtype)
        total = a.astype(np.float64) @ weights.T.astype(np.float64)
        dtype = DType.of(a.dtype)
        if bias is not None:
            total = narrow(total, dtype).astype(np.float64) + bias.astype(np.float64)
        return (narrow(total, dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        n, k, block = 3, 40, 16
        a, bias = normal(rng, 2, 2, k), normal(rng, n)
        for bits in (4, 8, 2):
            attrs: dict[str, Any] = {"N": n, "K": k, "bits": bits, "block_size": block, "opset": 1}
            w = rng.integers(0, 256, (n, 3, block * bits // 8)).astype(np.uint8)
            scale = abs(normal(rng, n * 3))
            zero = rng.integers(0, 256, n * -(-3 * bits // 8)).astype(np.uint8)
            for sample in (
                cls.sample(a, w, scale, **attrs),
                cls.sample(a, w, scale, zero, **attrs),
                cls.sample(a, w, scale, zero, None, bias, **attrs),
            ):
                yield sample if bits > 2 else Sample(sample.op, sample.inputs)
        w = rng.integers(0, 256, (n, 3, 8)).astype(np.uint8)
        floats = normal(rng, n * 3)
        yield Sample(cls(n, k, 4, block, (True, False, False)), (a, w, abs(floats), floats))
        groups = rng.integers(0, 3, k).astype(np.int32)
        yield Sample(cls(n, k, 4, block, (False, True, False)), (a, w, abs(floats), groups))
        for half in (np.float16, ml_dtypes.bfloat16):
            inputs = (a.astype(half), w, abs(floats).astype(half), bias.astype(half))
            yield Sample(cls(n, k, 4, block, (False, False, True)), inputs)


def _row(p: Buffer, n: Expr, i: Expr, count: int) -> Expr:
    """Element i of row n, of rows of `count` elements that may lie in one axis."""
    return p[n, i] if len(p.shape) == 2 else p[n * count + i]
