"""Pools by the p-norm: the p-th root of the sum of p-th powers of a window, or of all spatial axes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

from tilewright.ir.expr import BinaryOp, Buffer, Expr, UnaryOp, binary, cast, const, unary
from tilewright.ops.axes import FLOATS, accumulator, narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.pool import infer_pool, pool_window
from tilewright.ops.core.reduce import Reduction
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_MULTIPLIED = 4  # powers up to this are products


def _exponent(node: OnnxNode) -> float:
    p = node.real("p", 2.0)  # an integer since opset 2
    if not 1 <= p < 1 << 20:
        raise UserError(f"{node.op_type}: a norm of order {p}")
    return p


def _power(x: Expr, p: float) -> Expr | tuple[Expr, Expr]:
    """What is added up: a value or two factors."""
    size = unary(UnaryOp.ABS, x)
    if p == 1:
        return size
    if p in range(2, _MULTIPLIED + 1):
        return reduce(lambda a, b: a * b, [size] * (int(p) - 1)), size
    return binary(BinaryOp.POW, size, const(p, x.dtype))


def _root(total: Expr, p: float) -> Expr:
    if p == 1:
        return total
    return unary(UnaryOp.SQRT, total) if p == 2 else binary(BinaryOp.POW, total, const(1 / p, total.dtype))


@dataclass(frozen=True, slots=True)
class LpPool(Op):
    """The norm of each window; padding is zero."""

    onnx = ("LpPool",)
    kind = Kind.REDUCTION
    window: Window
    p: float = 2.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(pool_window(node), _exponent(node)), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return infer_pool(self, inputs, self.window, FLOATS)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        rank, window, wide = len(self.window.kernel), self.window, accumulator(x.dtype)
        padded = window.pad(b, x, out.shape[2:], 0, f"{name}_pad")

        def tap(*i: Expr) -> Expr | tuple[Expr, Expr]:
            value = padded[(*i[:2], *window.taps(i[2 : 2 + rank], i[2 + rank :]))]
            return _power(cast(wide, value), self.p)

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        total = b.reduce(f"{name}_sum", out.shape, window.kernel, tap, "sum", axes=axes)
        return (
            b.compute(
                name, out.shape, lambda *i: cast(out.dtype, _root(total[i], self.p)), axes=axes[: 2 + rank]
            ),
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        views = self.window.view(widen(inputs[0]), out.shape[2:], 0.0)
        with np.errstate(all="ignore"):
            total = (abs(views) ** self.p).sum(tuple(range(-len(self.window.kernel), 0)))
            return (narrow(total ** (1 / self.p), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 5, 6)
        for p in (1, 2, 3, 5):
            yield cls.sample(x, kernel_shape=[2, 3], p=p)
        yield cls.sample(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        yield cls.sample(x, kernel_shape=[2, 2], dilations=[2, 2])
        yield cls.sample(x[:, :, :2], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[2, 2], auto_pad="SAME_LOWER", strides=[2, 2])
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2], opset=11)
        yield cls.sample(normal(rng, 1, 1, 2, 3, 3), kernel_shape=[2, 2, 2])
        yield Sample(
            cls(Window((3,), (2,), (1,), (0,), (0,), True)), (normal(rng, 1, 1, 8).astype(np.float16),)
        )
        yield Sample(
            cls(Window((2,), (1,), (1,), (0,), (0,)), 1.5), (normal(rng, 1, 1, 4).astype(np.float64),)
        )


@dataclass(frozen=True, slots=True)
class GlobalLpPool(Reduction):
    onnx = ("GlobalLpPool",)
    takes = FLOATS
    p: float = 2.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(tuple(range(2, node.input(0).rank)), True, _exponent(node)), (0,)

    def element(self, x: Expr) -> Expr | tuple[Expr, Expr]:
        return _power(x, self.p)

    def finish(self, total: Expr, count: int) -> Expr:
        return _root(total, self.p)

    def numpy(self, x: Array, axes: tuple[int, ...]) -> Array:
        return (abs(x) ** self.p).sum(axes, keepdims=True) ** (1 / self.p)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for p in (1, 2, 3, 5):
            yield cls.sample(normal(rng, 2, 2, 3, 4), p=p)
        yield cls.sample(normal(rng, 1, 2, 3, 2, 2))
        yield cls.sample(normal(rng, 1, 2, 5).astype(np.float16))
