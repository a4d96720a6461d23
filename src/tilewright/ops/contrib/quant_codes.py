"""MatMulBnb4 of com.microsoft: weights are codes of 4 bits for 16 numbers, as bitsandbytes writes them. They are looked
up at compile time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, binary, cast, const, select
from tilewright.ops.axes import FLOATS, accumulator, narrow
from tilewright.ops.core.contraction import MatMul
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

# A float with 2 bits of exponent and 1 of mantissa, over 12, with the sign in the highest bit.
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
# Quantiles of the normal distribution, so that each code is as likely as the others.
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_TABLES = ((*_FP4, *(-v for v in _FP4)), _NF4)


@dataclass(frozen=True, slots=True)
class MatMulBnb4(Op):
    """A times the transpose of weights, of which two are in a byte, the first in the high bits. Each `block` of them in
    memory has a factor. Codes are of floats of 4 bits, or with `normal` of quantiles of the normal distribution.
    """

    onnx = ("com.microsoft.MatMulBnb4",)
    kind = Kind.CONTRACTION
    rows: int  # of the weights
    columns: int
    block: int
    normal: bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        if not node.integer("transB", 1):
            raise UserError("weights that are not transposed are not supported")
        kind = node.integer("quant_type", 1)
        if kind not in (0, 1):
            raise UserError(f"there is no quant_type {kind}")
        shape = (node.integer("N", 0), node.integer("K", 0), node.integer("block_size", 0))
        return cls(*shape, kind == 1), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3)
        a, w, factor = inputs
        if min(self.rows, self.columns, self.block) < 1:
            raise self.misfit(inputs, f"weights of {self.rows} by {self.columns} in blocks of {self.block}")
        count = self.rows * self.columns
        if a.dtype not in FLOATS or not a.rank or a.shape[-1] != self.columns or factor.dtype is not a.dtype:
            raise self.misfit(inputs, f"A must have {self.columns} columns, and factors of its type")
        if w.dtype is not DType.U8 or w.shape != (-(-count // 2),):
            raise self.misfit(inputs, f"the weights must be u8[{-(-count // 2)}]")
        if factor.shape != (-(-count // self.block),):
            raise self.misfit(inputs, f"there must be {-(-count // self.block)} factors")
        return (TensorType(a.dtype, (*a.shape[:-1], self.rows)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        a, w, factor = inputs
        wide = accumulator(a.dtype)
        table = [const(v, wide) for v in _TABLES[self.normal]]

        def weight(k: Expr, n: Expr) -> Expr:
            at = n * self.columns + k
            shift = cast(DType.U8, (const(1) - at % 2) * 4)
            code = binary(BinaryOp.AND, binary(BinaryOp.SHR, w[at // 2], shift), const(15, DType.U8))

            def among(low: int, high: int) -> Expr:
                if high - low == 1:
                    return table[low]
                mid = (low + high) // 2
                return select(code < mid, among(low, mid), among(mid, high))

            return cast(a.dtype, among(0, 16) * cast(wide, factor[at // self.block]))

        weights = b.compute(f"{name}_w", (self.columns, self.rows), weight)
        return MatMul().compute(b, (a, weights), name)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, w, factor = inputs
        count = self.rows * self.columns
        codes = np.stack([w >> 4, w & 15], -1).reshape(-1)[:count]
        wide = np.float64 if a.dtype == np.float64 else np.float32
        values = np.array(_TABLES[self.normal], wide)[codes]
        weights = (values * factor.astype(wide)[np.arange(count) // self.block]).astype(a.dtype)
        product = a.astype(np.float64) @ weights.reshape(self.rows, self.columns).T.astype(np.float64)
        return (narrow(product, DType.of(a.dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        n, k, block = 3, 32, 16
        a, factor = normal(rng, 2, 2, k), abs(normal(rng, n * k // block))
        w = rng.integers(0, 256, n * k // 2).astype(np.uint8)
        attrs: dict[str, Any] = {"N": n, "K": k, "block_size": block, "opset": 1}
        for kind in (0, 1):
            yield cls.sample(a, w, factor, quant_type=kind, **attrs)
        half = cls.sample(a, w, factor, quant_type=1, **attrs)
        yield Sample(half.op, (a.astype(np.float16), w, factor.astype(np.float16)))
        yield Sample(cls(3, 5, 16, True), (normal(rng, 5), w[:8], factor[:1]))
