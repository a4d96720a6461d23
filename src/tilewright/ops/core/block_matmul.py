"""Products with weights of 4 bits that share a scale by blocks of their rows, in integers.

    x ≈ q · s    rows in blocks, as signed bytes with a scale for each block        QuantizeBlocks
    w ≈ (c - z) · r    codes of 4 bits, with a scale and a zero point for each block
    y = Σ over blocks s · (r · Σ q · c  -  r · z · Σ q)                              BlockMatMul

The sums of a block are exact, in i32. Codes keep their 4 bits in memory: `pack_codes` says in which order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, UnaryOp, binary, cast, const, select, unary
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.quantize import quantized, quantized_array
from tilewright.ops.opdef import Kind, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.tir.build import FuncBuilder

GROUP = 8  # codes in four bytes, which an instruction takes at a time; given
_LARGEST = 127.0  # of a signed byte that has a counterpart; given


def pack_codes(codes: Array) -> Array:
    """From codes [n, blocks, block] to bytes [n, blocks, block / 8, 4]: of eight, the first four are low halves."""
    eights = codes.reshape(*codes.shape[:-1], -1, 2, GROUP // 2).astype(np.uint8)
    return np.asarray(eights[..., 0, :] | eights[..., 1, :] << 4)


def unpack_codes(packed: Array) -> Array:
    """What `pack_codes` packed."""
    halves = np.stack([packed & 15, packed >> 4], axis=-2)
    return halves.reshape(*packed.shape[:2], -1)


@dataclass(frozen=True, slots=True)
class QuantizeBlocks(Op):
    """Rows in blocks of `block` numbers, as signed bytes: these, the scale of each block, and what its numbers sum up
    to.
    """

    kind = Kind.REDUCTION
    block: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype is not DType.F32 or x.rank != 2 or self.block < 1 or x.shape[1] % self.block:
            raise self.misfit(inputs, f"rows of f32 in blocks of {self.block}")
        blocks = (x.shape[0], x.shape[1] // self.block)
        scale = TensorType(DType.F32, blocks)
        return TensorType(DType.I8, (*blocks, self.block)), scale, scale

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        codes, scales, _ = self.infer([TensorType(x.dtype, x.shape)])
        rows, blocks, size = codes.shape

        def magnitude(i: Expr, j: Expr, k: Expr) -> Expr:
            return unary(UnaryOp.ABS, x[i, j * size + k])

        peak = b.reduce(f"{name}_peak", (rows, blocks), (size,), magnitude, "max")

        def step(i: Expr, j: Expr) -> Expr:
            return peak[i, j] / _LARGEST

        def inverse(i: Expr, j: Expr) -> Expr:
            is_zero = binary(BinaryOp.EQ, peak[i, j], const(0.0, DType.F32))
            return select(is_zero, const(0.0, DType.F32), const(_LARGEST, DType.F32) / peak[i, j])

        scale = b.compute(f"{name}_1", scales.shape, step)
        factor = b.compute(f"{name}_inverse", scales.shape, inverse)

        def element(i: Expr, j: Expr, k: Expr) -> Expr:
            return quantized(x[i, j * size + k] * factor[i, j], None, DType.I8)

        code = b.compute(name, codes.shape, element)

        def counted(i: Expr, j: Expr, k: Expr) -> Expr:
            return cast(DType.I32, code[i, j, k])

        count = b.reduce(f"{name}_count", (rows, blocks), (size,), counted, "sum")

        def summed(i: Expr, j: Expr) -> Expr:
            return cast(DType.F32, count[i, j]) * scale[i, j]

        total = b.compute(f"{name}_2", scales.shape, summed)
        return code, scale, total

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        parts = x.reshape(x.shape[0], -1, self.block)
        with np.errstate(all="ignore"):
            peak = np.abs(parts).max(axis=2)
            scale = peak / np.float32(_LARGEST)
            factor = np.where(peak == 0, np.float32(0), np.float32(_LARGEST) / peak)
            codes = quantized_array(parts * factor[..., None], None, DType.I8)
            total = codes.sum(axis=2, dtype=np.int32).astype(np.float32) * scale
        return codes, scale, total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield Sample(cls(16), (normal(rng, 3, 48),))
        yield Sample(cls(32), (np.zeros((2, 32), np.float32),))


@dataclass(frozen=True, slots=True)
class BlockMatMul(Op):
    """Rows that QuantizeBlocks made times the transpose of such weights. The last input is the zero points times the
    scales of the weights.
    """

    kind = Kind.CONTRACTION

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 6)
        x, x_scale, x_total, w, w_scale, w_zero = inputs
        if x.dtype is not DType.I8 or x.rank != 3 or x.shape[2] % GROUP:
            raise self.misfit(inputs, "rows must be i8 in blocks of a multiple of 8")
        rows, blocks, size = x.shape
        if w.dtype is not DType.U8 or w.rank != 4 or w.shape[1:] != (blocks, size // GROUP, GROUP // 2):
            raise self.misfit(inputs, f"codes must be u8[…, {blocks}, {size // GROUP}, {GROUP // 2}]")
        wanted = [(rows, blocks)] * 2 + [(w.shape[0], blocks)] * 2
        given = (x_scale, x_total, w_scale, w_zero)
        if any(t.dtype is not DType.F32 or t.shape != s for t, s in zip(given, wanted, strict=True)):
            raise self.misfit(inputs, "scales must be f32, for each row and block")
        return (TensorType(DType.F32, (rows, w.shape[0])),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, x_scale, x_total, w, w_scale, w_zero = inputs
        rows, blocks, size = x.shape
        count = w.shape[0]

        def products(m: Expr, j: Expr, n: Expr, q: Expr, g: Expr) -> Expr:
            byte, at = w[n, j, q, g], q * GROUP + g
            low = binary(BinaryOp.AND, byte, const(15, DType.U8))
            high = binary(BinaryOp.SHR, byte, const(4, DType.U8))
            first = cast(DType.I32, x[m, j, at]) * cast(DType.I32, low)
            return first + cast(DType.I32, x[m, j, at + GROUP // 2]) * cast(DType.I32, high)

        sums = b.reduce(
            f"{name}_sums",
            (rows, blocks, count),
            (size // GROUP, GROUP // 2),
            products,
            "sum",
            axes=["m", "b", "n", "q", "g"],
        )

        def scaled(m: Expr, n: Expr, j: Expr) -> Expr:
            value = cast(DType.F32, sums[m, j, n]) * w_scale[n, j] * x_scale[m, j]
            return value - w_zero[n, j] * x_total[m, j]

        return (b.reduce(name, (rows, count), (blocks,), scaled, "sum", axes=["m", "n", "b"]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, x_scale, x_total, w, w_scale, w_zero = inputs
        sums = np.einsum(
            "mbk,nbk->mbn", x.astype(np.int64), unpack_codes(w).reshape(*w.shape[:2], -1).astype(np.int64)
        )
        parts = sums * w_scale.T.astype(np.float64) * x_scale[..., None].astype(np.float64)
        taken = x_total.astype(np.float64) @ w_zero.T.astype(np.float64)
        return ((parts.sum(axis=1) - taken).astype(np.float32),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for rows, count, blocks, size in ((3, 5, 2, 16), (1, 16, 3, 32)):
            x = normal(rng, rows, blocks * size)
            codes = rng.integers(0, 16, (count, blocks, size))
            scale = np.abs(normal(rng, count, blocks))
            left = QuantizeBlocks(size).reference((x,))
            yield Sample(cls(), (*left, pack_codes(codes), scale, scale * np.float32(8)))
