"""Contractions: MatMul and Gemm. One reduction block; scaling and bias follow in a block of their own.

Half precision is accumulated in f32.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import ml_dtypes
import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import NUMBERS, accumulator, load_broadcast, narrow, try_broadcast, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.sizes import same_size
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """numpy's matmul: the last two axes are matrices, those before broadcast; a vector is a row or a column."""

    onnx = ("MatMul",)
    kind = Kind.CONTRACTION

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        a, b = inputs
        if a.dtype is not b.dtype or a.dtype not in NUMBERS:
            raise self.misfit(inputs, "both must have the same numeric type")
        if not a.rank or not b.rank:
            raise self.misfit(inputs, "a scalar is not a matrix")
        if a.shape[-1] != b.shape[-2 if b.rank > 1 else 0]:
            raise self.misfit(inputs, "the inner extents differ")
        batch = try_broadcast([a.shape[:-2], b.shape[:-2]])
        if batch is None:
            raise self.misfit(inputs, "the batch axes do not broadcast")
        rows, cols = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
        return (TensorType(a.dtype, (*batch, *rows, *cols)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        left, right = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        rows, cols = len(left.shape) > 1, len(right.shape) > 1
        batch = out.shape[: len(out.shape) - rows - cols]
        wide = accumulator(out.dtype)

        def product(*i: Expr) -> tuple[Expr, Expr]:
            *at, k = i
            outer, inner = at[: len(batch)], at[len(batch) :]
            m = inner[:1] if rows else []
            n = inner[-1:] if cols else []
            return (
                cast(wide, load_matrix(left, outer, batch, [*m, k])),
                cast(wide, load_matrix(right, outer, batch, [k, *n])),
            )

        axes = [f"b{d}" for d in range(len(batch))] + ["m"] * rows + ["n"] * cols + ["k"]
        label = name if wide is out.dtype else f"{name}_wide"
        total = b.reduce(label, out.shape, left.shape[-1:], product, "sum", axes=axes)
        if wide is out.dtype:
            return (total,)
        return (b.compute(name, out.shape, lambda *i: cast(out.dtype, total[i]), axes=axes[:-1]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b = inputs
        with np.errstate(all="ignore"):
            return (narrow(np.matmul(widen(a), widen(b)), DType.of(a.dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for left, right in (
            ((2, 5), (5, 3)),
            ((2, 2, 3), (3, 2)),
            ((2, 1, 2, 3), (3, 3, 2)),
            ((5,), (5, 2)),
            ((2, 2, 5), (5,)),
            ((4,), (4,)),
            ((1, 1), (1, 1)),
        ):
            yield cls.sample(normal(rng, *left), normal(rng, *right))
        yield cls.sample(
            rng.integers(-9, 9, size=(2, 3)).astype(np.int32),
            rng.integers(-9, 9, size=(3, 2)).astype(np.int32),
        )
        for dtype in (np.int64, np.uint32, np.uint64, np.float64):
            big = rng.integers(0, 1 << 31, size=(2, 3)).astype(dtype)
            yield cls.sample(big, rng.integers(0, 9, size=(3,)).astype(dtype))
        for small in (np.int8, np.uint8, np.int16, np.uint16):  # they wrap
            pair = tuple(rng.integers(0, 99, size=s).astype(small) for s in ((2, 1, 3), (2, 3, 2)))
            yield Sample(cls(), pair)
        yield cls.sample(normal(rng, 2, 9).astype(np.float16), normal(rng, 9, 2).astype(np.float16))
        yield Sample(cls(), tuple(normal(rng, *s).astype(ml_dtypes.bfloat16) for s in ((2, 9), (9, 2))))
        yield cls.sample(
            np.array([[np.inf, 1], [np.nan, 0]], np.float32), np.array([[1, 0], [2, -1]], np.float32)
        )


def load_matrix(x: Buffer, outer: Sequence[Expr], batch: Sequence[int], inner: Sequence[Expr]) -> Expr:
    """`x` at batch index `outer` (broadcast) and matrix index `inner`."""
    count = len(x.shape) - len(inner)
    lead = len(batch) - count
    at = [
        i if same_size(n, full) else 0
        for n, i, full in zip(x.shape[:count], outer[lead:], batch[lead:], strict=True)
    ]
    return x[(*at, *inner)]


@dataclass(frozen=True, slots=True)
class Gemm(Op):
    """alpha · A' B' + beta · C, where A' is A or its transpose and C broadcasts to the result."""

    onnx = ("Gemm",)
    kind = Kind.CONTRACTION
    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        scales = node.real("alpha", 1.0), node.real("beta", 1.0)
        return cls(*scales, bool(node.integer("transA", 0)), bool(node.integer("transB", 0))), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        a, b, *c = inputs
        if any(t.dtype is not a.dtype for t in inputs) or a.dtype not in NUMBERS:
            raise self.misfit(inputs, "all must have the same numeric type")
        if a.dtype.is_int and (self.alpha != int(self.alpha) or self.beta != int(self.beta)):
            raise self.misfit(inputs, "integers need integer alpha and beta")
        if a.rank != 2 or b.rank != 2:
            raise self.misfit(inputs, "A and B must be matrices")
        (m, k), (depth, n) = a.shape[:: -1 if self.trans_a else 1], b.shape[:: -1 if self.trans_b else 1]
        if k != depth:
            raise self.misfit(inputs, f"the inner extents {k} and {depth} differ")
        if c and try_broadcast([c[0].shape, (m, n)]) != (m, n):
            raise self.misfit(inputs, f"C does not broadcast to [{m}, {n}]")
        return (TensorType(a.dtype, (m, n)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        left, right, *bias = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        wide = accumulator(out.dtype)
        bias = bias if self.beta else []

        def product(m: Expr, n: Expr, k: Expr) -> tuple[Expr, Expr]:
            a = left[k, m] if self.trans_a else left[m, k]
            return cast(wide, a), cast(wide, right[n, k] if self.trans_b else right[k, n])

        plain = not bias and self.alpha == 1 and wide is out.dtype
        depth = left.shape[0 if self.trans_a else 1]
        total = b.reduce(name if plain else f"{name}_matmul", out.shape, (depth,), product, "sum")
        if plain:
            return (total,)

        def scaled(m: Expr, n: Expr) -> Expr:
            value: Expr = total[m, n]
            if self.alpha != 1:
                value = value * self.alpha
            for c in bias:
                term = cast(wide, load_broadcast(c, (m, n), out.shape))
                value = value + (term if self.beta == 1 else term * self.beta)
            return cast(out.dtype, value)

        return (b.compute(name, out.shape, scaled),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, *c = (widen(x) for x in inputs)
        with np.errstate(all="ignore"):
            total = np.matmul(a.T if self.trans_a else a, b.T if self.trans_b else b)
            exact = int if DType.of(inputs[0].dtype).is_int else float
            total = total * exact(self.alpha) + (c[0] * exact(self.beta) if c and self.beta else 0)
        return (narrow(total, DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        a, b, c = normal(rng, 2, 5), normal(rng, 5, 3), normal(rng, 3)
        yield cls.sample(a, b, c)
        yield cls.sample(a, b)
        yield cls.sample(a.T.copy(), b.T.copy(), c, transA=1, transB=1)
        yield cls.sample(a, b, normal(rng, 2, 1), alpha=0.5, beta=2.0)
        yield cls.sample(a, b, normal(rng), alpha=0.5)
        yield cls.sample(a, b, c, beta=0.0)
        yield cls.sample(a, b, alpha=0.5, beta=2.0)
        yield cls.sample(a.T.copy(), b, normal(rng, 1, 3), transA=1)
        yield cls.sample(a, b.T.copy(), normal(rng, 2, 3), transB=1, opset=9)
        yield cls.sample(a.astype(np.float16), b.astype(np.float16), c.astype(np.float16))
        yield cls.sample(a.astype(np.float64), b.astype(np.float64), c.astype(np.float64))
        for dtype in (np.int32, np.int64, np.uint32, np.uint64, ml_dtypes.bfloat16):
            whole = tuple((x * 9).astype(np.int64).astype(dtype) for x in (a, b, c))
            yield Sample(cls(2.0, 3.0), whole)
