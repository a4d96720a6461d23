"""Discrete Fourier transforms: DFT, and STFT over sliding frames.

A complex number is an axis of two at the end, a real one an axis of one. A transform is a contraction with a matrix of
cosines and sines, which depends on no data and is computed at compile time; its angles are exact fractions of a turn.
One whose length has factors becomes several short ones (`graph/passes/divide_transforms.py`). What is long and cannot
be divided so, for which the matrix would be too large, is left to numpy's fast transform, on the host.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, UnaryOp, cast, equal, lift, select, unary
from tilewright.ops.axes import FLOATS, accumulator, narrow, normal_axis, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import is_open
from tilewright.tir.build import FuncBuilder

_MATRIX = 1 << 23  # elements of a matrix that is worth having
_SHORT = 128  # points of a transform that a divided one is made of
_DIVIDED = 2.0  # times less work is worth the steps between
_MOST = 1 << 28  # points of a transform
_WHY = "the transform is long, or its length is computed at run time"


class ShortTransforms(NamedTuple):
    """A transform of first · second points as short ones."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform of `length` points, of which only the first half (and the middle) is made if `onesided`; or taken, if
    it is `inverse` too: then the result is real."""

    length: int
    inverse: bool = False
    onesided: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.length <= _MOST:
            raise UserError(f"a Fourier transform of {self.length} points")

    @property
    def results(self) -> int:
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def parts(self) -> int:
        """How many numbers an element of the result has."""
        return 1 if self.onesided and self.inverse else 2

    def used(self, extent: int) -> int:
        """How many points of a signal take part; missing ones are zero."""
        return min(extent, self.length // 2 + 1 if self.onesided and self.inverse else self.length)

    def division(self, extent: int, parts: int) -> ShortTransforms | None:
        """How a transform of signals of `extent` numbers of `parts` parts is less work as two shorter ones; None if
        it is not.
        """
        if self.onesided and self.inverse:
            return None
        pairs = [ShortTransforms(n, self.length // n) for n in range(2, _SHORT + 1) if self.length % n == 0]
        work = {
            d: 2 * self.length * parts * d.first + 4 * -(-self.results // d.first) * d.first * d.second
            for d in pairs
            if d.second <= _SHORT
        }
        best = min(work, key=work.__getitem__, default=None)
        whole = self.used(extent) * parts * self.results * 2
        return best if best is not None and _DIVIDED * work[best] < whole else None

    def matrix(self, b: FuncBuilder, points: int, parts: int, wide: DType, name: str) -> Buffer:
        """The factor of part c of point n in part r of result k: [n, c, k, r]."""

        # A float divides an open number as if it were the largest: here it is lifted first.
        is_fixed = not is_open((self.length,))
        turn = 2 * math.pi / (self.length if is_fixed else lift(self.length, DType.F64))

        def factor(n: Expr, c: Expr, k: Expr, r: Expr) -> Expr:
            angle = cast(DType.F64, n * k % self.length) * turn
            sine = unary(UnaryOp.SIN, angle)
            # Real from real and imaginary from imaginary: the cosine; in one of the others the sine is negative.
            from_other = select(equal(c, 0 if self.inverse else 1), sine, -sine)
            value = select(equal(c, r), unary(UnaryOp.COS, angle), from_other)
            if self.inverse:
                value = value / self.length
            if self.inverse and self.onesided:  # the other half is this one's mirror image
                alone = equal(n * 2 % self.length, 0)
                value = select(alone, value, value * 2)
            return cast(wide, value)

        return b.compute(name, (points, parts, self.results, self.parts), factor)

    def fast(self, signal: Array, axis: int) -> Array:
        """In numpy; the signal has the axis of parts at the end."""
        values = widen(signal)
        numbers = values[..., 0] if values.shape[-1] == 1 else values[..., 0] + 1j * values[..., 1]
        if self.onesided and self.inverse:
            return np.fft.irfft(numbers, self.length, axis)[..., None]
        transform = np.fft.ifft if self.inverse else np.fft.fft
        result = transform(numbers, self.length, axis)
        result = result.take(np.arange(self.results), axis)
        return np.stack([result.real, result.imag], -1)


@dataclass(frozen=True, slots=True)
class DFT(Op):
    """The transform along `axis`, which is not the last."""

    onnx = ("DFT",)
    kind = Kind.CONTRACTION
    axis: int
    transform: Transform

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        op = cls.of(node, node.input(0))
        x, t = node.input(0), op.transform
        extent, parts = x.shape[op.axis], x.shape[-1]
        if t.used(extent) * parts * t.results * t.parts > _MATRIX and t.division(extent, parts) is None:
            raise OnHost(f"a transform of {t.length} points")
        return op, (0,)

    @classmethod
    def of(cls, node: OnnxNode, x: TensorType) -> Self:
        if node.opset < 20:
            axis = node.integer("axis", 1)
        else:
            axis = int(node.value(2, "the axis").item()) if node.has(2) else -2
        axis = normal_axis(axis, x.rank)
        inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
        if node.has(1):
            length = int(node.value(1, "the number of points").item())
        else:
            length = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
        return cls(axis, Transform(length, inverse, onesided))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if x.dtype not in FLOATS:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if x.rank < 2 or x.shape[-1] not in (1, 2) or not 0 <= self.axis < x.rank - 1:
            raise self.misfit(
                inputs, f"the last axis has to hold 1 or 2 numbers, and not be axis {self.axis}"
            )
        if not x.shape[self.axis]:
            raise self.misfit(inputs, f"axis {self.axis} is empty")
        shape = (*x.shape[: self.axis], self.transform.results, *x.shape[self.axis + 1 : -1])
        return (TensorType(x.dtype, (*shape, self.transform.parts)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,), a = inputs, self.axis
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        wide, points = accumulator(x.dtype), self.transform.used(x.shape[a])
        matrix = self.transform.matrix(b, points, x.shape[-1], wide, f"{name}_matrix")

        def factors(*i: Expr) -> tuple[Expr, Expr]:
            *at, r, n, c = i
            return cast(wide, x[(*at[:a], n, *at[a + 1 :], c)]), matrix[n, c, at[a], r]

        axes = [f"i{d}" for d in range(len(out.shape))]
        total = b.reduce(
            f"{name}_sum", out.shape, (points, x.shape[-1]), factors, "sum", axes=[*axes, "n", "c"]
        )
        return (b.compute(name, out.shape, lambda *i: cast(out.dtype, total[i]), axes=axes),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (narrow(self.transform.fast(inputs[0], self.axis), DType.of(inputs[0].dtype)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        real, numbers = normal(rng, 2, 5, 3, 1), normal(rng, 2, 6, 3, 2)

        def scalar(n: int) -> Array:
            return np.array(n, np.int64)

        for x in (real, numbers):
            yield cls.sample(x, None, scalar(1), opset=20)
            yield cls.sample(x, opset=20)
            yield cls.sample(x, scalar(4), scalar(1), opset=20)
            yield cls.sample(x, scalar(8), axis=1, opset=17)
        yield cls.sample(real, None, scalar(-3), onesided=1, opset=20)
        yield cls.sample(real, scalar(8), onesided=1, opset=17)
        yield cls.sample(numbers, None, scalar(1), inverse=1, opset=20)
        for length in (10, 9, 6, 14):
            yield Sample(cls(1, Transform(length, True, True)), (numbers,))
        yield cls.sample(numbers.astype(np.float64), None, scalar(1), opset=20)
        yield Sample(cls(1, Transform(5)), (real.astype(np.float16),))


@dataclass(frozen=True, slots=True)
class LongDFT(HostOp):
    onnx = ("DFT",)
    why = _WHY
    node: OnnxNode

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "the signal")
        op = DFT.of(_with_values(self.node, inputs), TensorType.of(x))
        op.infer([TensorType.of(x)])
        return op.reference([x])

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((1, 4099, 1))
        yield HostSample("DFT", (x,), {"onesided": 1}, opset=17)
        yield HostSample("DFT", (x, np.array(4093, np.int64), np.array(1, np.int64)), opset=20)


@dataclass(frozen=True, slots=True)
class STFT(Op):
    """The transforms of frames of x[n, time, part] that start `step` apart: [n, frame, frequency, part]. A second input
    has a factor for each point of a frame."""

    onnx = ("STFT",)
    kind = Kind.CONTRACTION
    step: int
    transform: Transform

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        op = cls.of(node, x)
        t = op.transform
        if t.length * x.shape[-1] * t.results * t.parts > _MATRIX:
            raise OnHost(f"a transform of {t.length} points")
        return op, ((0, 2) if node.has(2) else (0,))

    @classmethod
    def of(cls, node: OnnxNode, x: TensorType) -> Self:
        step = int(node.value(1, "the step").item())
        if node.has(3):
            length = int(node.value(3, "the length of a frame").item())
        elif node.has(2):
            length = math.prod(node.input(2).shape)
        else:
            length = x.shape[-2] if x.rank > 1 else 0
        return cls(step, Transform(length, False, bool(node.integer("onesided", 1))))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1, 2)
        x, *window = inputs
        length = self.transform.length
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if x.rank != 3 or x.shape[-1] not in (1, 2):
            raise self.misfit(inputs, "a signal is [n, time, 1 or 2]")
        if window and window[0].shape != (length,):
            raise self.misfit(inputs, f"the window must have {length} elements")
        if self.step < 1 or x.shape[1] < length:
            raise self.misfit(inputs, f"has no frames of {length}, {self.step} apart")
        frames = (x.shape[1] - length) // self.step + 1
        return (TensorType(x.dtype, (x.shape[0], frames, self.transform.results, 2)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, *window = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        wide, length = accumulator(x.dtype), self.transform.length
        matrix = self.transform.matrix(b, length, x.shape[-1], wide, f"{name}_matrix")
        if window:
            bare = matrix

            def weighted(t: Expr, c: Expr, k: Expr, r: Expr) -> Expr:
                return bare[t, c, k, r] * cast(wide, window[0][t])

            matrix = b.compute(f"{name}_taps", bare.shape, weighted)

        def factors(*i: Expr) -> tuple[Expr, Expr]:
            n, f, k, r, t, c = i
            return cast(wide, x[n, f * self.step + t, c]), matrix[t, c, k, r]

        axes = ["n", "f", "k", "r"]
        total = b.reduce(
            f"{name}_sum", out.shape, (length, x.shape[-1]), factors, "sum", axes=[*axes, "t", "c"]
        )
        return (b.compute(name, out.shape, lambda *i: cast(out.dtype, total[i]), axes=axes),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, *window = inputs
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        length = self.transform.length
        starts = np.arange(out.shape[1]) * self.step
        frames = widen(x)[:, starts[:, None] + np.arange(length)]
        if window:
            frames = frames * widen(window[0])[:, None]
        return (narrow(self.transform.fast(frames, 2), out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, numbers = normal(rng, 2, 20, 1), normal(rng, 1, 12, 2)
        step, length, window = np.array(3, np.int64), np.array(8, np.int64), normal(rng, 8)
        yield cls.sample(x, step, None, length)
        yield cls.sample(x, step, window)
        yield cls.sample(x, step, window, length, onesided=0)
        yield cls.sample(x, step, window, runtime=(2,))
        yield cls.sample(numbers, step, window, onesided=0)
        yield cls.sample(x.astype(np.float64), step, window.astype(np.float64))


@dataclass(frozen=True, slots=True)
class LongSTFT(HostOp):
    onnx = ("STFT",)
    why = _WHY
    node: OnnxNode

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node)

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "the signal")
        op = STFT.of(_with_values(self.node, inputs), TensorType.of(x))
        operands = [x] if len(inputs) < 3 or inputs[2] is None else [x, tensor(inputs[2], "the window")]
        op.infer([TensorType.of(a) for a in operands])
        return op.reference(operands)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, step = rng.standard_normal((1, 4200, 1)), np.array(50, np.int64)
        attrs: dict[str, Any] = {"onesided": 1}
        yield HostSample("STFT", (x, step, None, np.array(4096, np.int64)), attrs, opset=17)


def _with_values(node: OnnxNode, inputs: Sequence[HostValue]) -> OnnxNode:
    """The node with inputs that are known."""
    arrays = [v if isinstance(v, np.ndarray) else None for v in inputs]
    types = tuple(None if a is None else TensorType.of(a) for a in arrays)
    return OnnxNode(node.op_type, node.opset, node.attrs, types, lambda i: arrays[i], node.outputs)
