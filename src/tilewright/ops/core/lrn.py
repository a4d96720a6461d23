"""Local response normalisation: each channel is divided by a power of the squares of its neighbours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Expr,
    UnaryOp,
    binary,
    cast,
    const,
    select,
    unary,
)
from tilewright.ops.axes import FLOATS, accumulator, narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class LRN(Op):
    """x / (bias + alpha / size · s)^beta, where s is the sum of squares of `size` channels around that of x.

    The window has (size - 1) // 2 channels before x, and the rest after it.
    """

    onnx = ("LRN",)
    kind = Kind.REDUCTION
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        size = node.integer("size", 0)
        if size < 1:
            raise UserError(f"LRN: a window of {size} channels")
        return cls(size, node.real("alpha", 1e-4), node.real("beta", 0.75), node.real("bias", 1.0)), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in FLOATS:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if x.rank < 2:
            raise self.misfit(inputs, "has no channels")
        return (x,)

    def _window(self, channels: int) -> tuple[int, int]:
        """How many channels before and after one count; no more than there are."""
        before = (self.size - 1) // 2
        return min(before, channels), min(self.size - 1 - before, channels)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        channels, wide = x.shape[1], accumulator(x.dtype)
        before, after = self._window(channels)

        def square(*i: Expr) -> Expr:
            n, c, *rest, k = i
            at = c + k - before
            inside = logical_and(at >= 0, at < channels)
            value = select(inside, cast(wide, x[(n, at, *rest)]), const(0, wide))
            return value * value

        axes = ["n", "c", *(f"i{d}" for d in range(2, len(x.shape)))]
        total = b.reduce(f"{name}_squares", x.shape, (before + 1 + after,), square, axes=[*axes, "k"])

        def element(*i: Expr) -> Expr:
            base = total[i] * (self.alpha / self.size) + self.bias
            return cast(x.dtype, cast(wide, x[i]) / self._power(base))

        return (b.compute(name, x.shape, element, axes=axes),)

    def _power(self, base: Expr) -> Expr:
        root = unary(UnaryOp.SQRT, base)
        match self.beta:
            case 0.75:  # what it is by default
                return root * unary(UnaryOp.SQRT, root)
            case 0.5:
                return root
            case _:
                return binary(BinaryOp.POW, base, const(self.beta, base.dtype))

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(x) for x in inputs])
        x = widen(inputs[0])
        channels = x.shape[1]
        before, after = self._window(channels)
        total = np.zeros_like(x)
        with np.errstate(all="ignore"):
            for c in range(channels):
                near = x[:, max(c - before, 0) : c + after + 1]
                total[:, c] = (near * near).sum(1)
            return (narrow(x / (self.bias + self.alpha / self.size * total) ** self.beta, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 5, 3, 3) * 4
        yield cls.sample(x, size=3)
        yield cls.sample(x, size=5, alpha=0.5, beta=0.5, bias=2.0)
        yield cls.sample(x, size=3, alpha=0.5, beta=0.6)
        yield cls.sample(x, size=21, alpha=0.5)
        yield Sample(cls(4, 0.3), (normal(rng, 2, 6),))  # onnxruntime wants an odd size, and four axes
        yield Sample(cls(3, 0.3), (x[0, :, :, :1].astype(np.float16),))
        # Nor does it confine what is not finite to the window.
        yield Sample(cls(3), (np.array([[1, np.nan, np.inf, 2, 3]], np.float32),))
