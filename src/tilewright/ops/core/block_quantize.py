"""Rows in blocks, as signed bytes with a scale for each block.

x ≈ q · s        q = round(x / s),  s = max |x| / 127 of the block
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

_LARGEST = 127.0  # of a signed byte that has a counterpart; given


@dataclass(frozen=True, slots=True)
class QuantizeBlocks(Op):
    """Rows in blocks of `block` numbers, as signed bytes: these, the scale of each block, and `times` what its bytes
    sum up to, which is exact.
    """

    kind = Kind.REDUCTION
    block: int
    times: float = 1.0

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
            return cast(DType.F32, count[i, j]) * self.times

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
            total = codes.sum(axis=2, dtype=np.int32).astype(np.float32) * np.float32(self.times)
        return codes, scale, total

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield Sample(cls(16), (normal(rng, 3, 48),))
        yield Sample(cls(32, 8.0), (np.zeros((2, 32), np.float32),))
