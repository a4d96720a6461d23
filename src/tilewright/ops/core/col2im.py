"""Col2Im: windows put back where they were cut out, and added up where they overlap."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Buffer,
    Expr,
    cast,
    const,
    equal,
    select,
)
from tilewright.ops.axes import NUMBERS, accumulator, narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.window import Window
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Col2Im(Op):
    """x[n, (c, kernel…), places] to [n, c, image…]: each element of the image is the sum over the taps of the windows
    that lie on it."""

    onnx = ("Col2Im",)
    kind = Kind.REDUCTION
    window: Window
    image: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        image = node.value_integers(1, "the image's shape")
        kernel = node.value_integers(2, "the shape of a window")
        if not 1 <= len(image) <= 3 or len(kernel) != len(image) or min(image) < 1:
            raise UserError(f"Col2Im to {list(image)} by {list(kernel)}: 1 to 3 axes are supported")
        return cls(Window.from_onnx(node, image, kernel), image), (0,)

    def _places(self) -> tuple[int, ...] | None:
        return self.window.outputs(self.image)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,), places = inputs, self._places()
        if x.dtype not in NUMBERS:
            raise self.misfit(inputs, f"not defined for {x.dtype.value}")
        if places is None or 0 in places:
            raise self.misfit(inputs, "the padded image is smaller than the window")
        taps = math.prod(self.window.kernel)
        if x.rank != 3 or x.shape[1] % taps or x.shape[2] != math.prod(places):
            raise self.misfit(inputs, f"{taps} taps and {math.prod(places)} places are needed")
        return (TensorType(x.dtype, (x.shape[0], x.shape[1] // taps, *self.image)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        window, wide, places = self.window, accumulator(x.dtype), self._places()
        assert places is not None
        rank = len(self.image)

        def tap(*i: Expr) -> Expr:
            n, c, image, k = i[0], i[1], i[2 : 2 + rank], i[2 + rank :]
            inside: list[Expr] = []
            channel, place = c, const(0)
            for d in range(rank):
                stride = window.strides[d]
                start = image[d] + window.before[d] - k[d] * window.dilations[d]
                inside += [const(0) <= start, start < (places[d] - 1) * stride + 1]
                if stride > 1:
                    inside.append(equal(start % stride, 0))
                channel = channel * window.kernel[d] + k[d]
                place = place * places[d] + start // stride
            return select(logical_and(*inside), cast(wide, x[n, channel, place]), const(0, wide))

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        if wide is x.dtype:
            return (b.reduce(name, out.shape, window.kernel, tap, "sum", axes=axes),)
        total = b.reduce(f"{name}_sum", out.shape, window.kernel, tap, "sum", axes=axes)
        return (b.compute(name, out.shape, lambda *i: cast(x.dtype, total[i]), axes=axes[: 2 + rank]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        window, places = self.window, self._places()
        assert places is not None
        x = widen(inputs[0]).reshape(*out.shape[:2], *window.kernel, *places)
        padded = [
            max(n + low, e)
            for n, low, e in zip(self.image, window.before, window.extents(places), strict=True)
        ]
        total = np.zeros((*out.shape[:2], *padded), x.dtype)
        for k in np.ndindex(*window.kernel):
            steps = zip(k, window.dilations, window.strides, places, strict=True)
            at = tuple(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in steps)
            total[(..., *at)] += x[(slice(None), slice(None), *k)]
        inner = tuple(slice(low, low + n) for low, n in zip(window.before, self.image, strict=True))
        return (narrow(total[(..., *inner)], out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        def shape(*n: int) -> Array:
            return np.array(n, np.int64)

        yield cls.sample(normal(rng, 1, 5, 5), shape(5, 5), shape(1, 5))
        yield cls.sample(normal(rng, 2, 8, 12), shape(4, 5), shape(2, 2))
        yield cls.sample(normal(rng, 1, 4, 4), shape(5, 5), shape(2, 2), strides=[2, 2], dilations=[2, 1])
        yield cls.sample(normal(rng, 1, 6, 16), shape(5, 5), shape(2, 3), pads=[0, 0, 0, 1])
        yield cls.sample(normal(rng, 1, 15, 10), shape(5, 5), shape(1, 5), pads=[0, 1, 0, 1], strides=[1, 2])
        yield cls.sample(
            normal(rng, 1, 6, 8), shape(2, 3, 4), shape(1, 2, 3), strides=[1, 1, 1], pads=[0] * 6
        )
        yield cls.sample(normal(rng, 1, 3, 4), shape(6), shape(3))
        yield Sample(
            cls(Window((2,), (1,), (1,), (0,), (0,)), (3,)), (rng.integers(0, 9, (1, 2, 2)).astype(np.int8),)
        )
