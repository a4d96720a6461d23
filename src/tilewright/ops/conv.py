"""Convolution over 1 to 3 spatial axes.

Blocks: `<name>_pad` if the windows leave the input, then one plain contraction, then the bias. The contraction
takes one of three forms, so that the common ones are free of group arithmetic: all channels together, one channel at
a time (depthwise), or groups in general.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, cast, const
from tilewright.ops.axes import FLOATS, accumulator, narrow, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.ops.window import Window, check_rank
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Conv(Op):
    """x[n, c, …] with weights [o, c / group, kernel…] and an optional bias [o]."""

    onnx = ("Conv",)
    kind = Kind.CONTRACTION
    window: Window
    group: int = 1

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        spatial, weight = check_rank(node), node.input(1)
        kernel = node.integers("kernel_shape") or weight.shape[2:]
        if kernel != weight.shape[2:]:
            raise UserError(f"Conv: kernel_shape {list(kernel)} is not that of the weights {weight}")
        return cls(Window.from_onnx(node, spatial, kernel), node.integer("group", 1)), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2, 3)
        x, w, *bias = inputs
        rank = len(self.window.kernel)
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if x.rank != rank + 2 or w.rank != rank + 2 or w.shape[2:] != self.window.kernel:
            raise self.misfit(inputs, f"the window is {list(self.window.kernel)}")
        if self.group < 1 or w.shape[1] * self.group != x.shape[1] or w.shape[0] % self.group:
            raise self.misfit(inputs, f"the channels do not fit {self.group} group(s)")
        if bias and bias[0].shape != w.shape[:1]:
            raise self.misfit(inputs, f"the bias must have {w.shape[0]} elements")
        places = self.window.outputs(x.shape[2:])
        if places is None:
            raise self.misfit(inputs, "the padded input is smaller than the window")
        return (TensorType(x.dtype, (x.shape[0], w.shape[0], *places)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, w, *bias = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        wide = accumulator(out.dtype)
        padded = self.window.pad(b, x, out.shape[2:], 0, f"{name}_pad")
        plain = not bias and wide is out.dtype
        total = self._contract(b, padded, w, out, name if plain else f"{name}_conv")
        if plain:
            return (total,)

        def finished(*i: Expr) -> Expr:
            value: Expr = total[i]
            for c in bias:
                value = value + cast(wide, c[i[1]])
            return cast(out.dtype, value)

        return (b.compute(name, out.shape, finished, axes=["n", "o", *self.window.axes()]),)

    def _contract(self, b: FuncBuilder, x: Buffer, w: Buffer, out: TensorType, name: str) -> Buffer:
        window, rank, wide = self.window, len(self.window.kernel), accumulator(out.dtype)
        places, taps = window.axes(), window.kernel_axes()

        def factors(
            n: Expr, c: Expr, weight: Sequence[Expr], place: Sequence[Expr], k: Sequence[Expr]
        ) -> tuple[Expr, Expr]:
            return cast(wide, x[(n, c, *window.taps(place, k))]), cast(wide, w[(*weight, *k)])

        if self.group == 1:

            def together(*i: Expr) -> tuple[Expr, Expr]:
                n, o, place, c, k = i[0], i[1], i[2 : 2 + rank], i[2 + rank], i[3 + rank :]
                return factors(n, c, (o, c), place, k)

            over = (w.shape[1], *window.kernel)
            return b.reduce(name, out.shape, over, together, "sum", axes=["n", "o", *places, "i", *taps])

        if w.shape[0] == self.group and w.shape[1] == 1:

            def depthwise(*i: Expr) -> tuple[Expr, Expr]:
                return factors(i[0], i[1], (i[1], const(0)), i[2 : 2 + rank], i[2 + rank :])

            return b.reduce(name, out.shape, window.kernel, depthwise, "sum", axes=["n", "c", *places, *taps])

        each, depth = w.shape[0] // self.group, w.shape[1]

        def grouped(*i: Expr) -> tuple[Expr, Expr]:
            n, g, o, place, c, k = i[0], i[1], i[2], i[3 : 3 + rank], i[3 + rank], i[4 + rank :]
            return factors(n, g * depth + c, (g * each + o, c), place, k)

        shape, axes = (out.shape[0], self.group, each, *out.shape[2:]), ["n", "g", "o", *places]
        groups = b.reduce(
            f"{name}_groups", shape, (depth, *window.kernel), grouped, "sum", axes=[*axes, "i", *taps]
        )
        return b.compute(
            name,
            out.shape,
            lambda *i: groups[(i[0], i[1] // each, i[1] % each, *i[2:])],
            axes=["n", "o", *places],
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, w, *bias = (widen(t) for t in inputs)
        rank, g = len(self.window.kernel), self.group
        views = self.window.view(x, out.shape[2:], 0.0)
        views = views.reshape(x.shape[0], g, x.shape[1] // g, *views.shape[2:])
        weights = w.reshape(g, w.shape[0] // g, *w.shape[1:])
        places, taps = "xyz"[:rank], "uvw"[:rank]
        with np.errstate(all="ignore"):
            total = np.einsum(f"ngi{places}{taps},goi{taps}->ngo{places}", views, weights).reshape(out.shape)
            if bias:
                total = total + bias[0].reshape(-1, *[1] * rank)
        return (narrow(total, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w, bias = normal(rng, 1, 2, 5, 4), normal(rng, 3, 2, 3, 3), normal(rng, 3)
        yield cls.sample(x, w)
        yield cls.sample(x, w, bias, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        yield cls.sample(x, w, bias, pads=[1, 0, 2, 1], strides=[2, 3])
        yield cls.sample(x, w, pads=[2, 2, 2, 2], dilations=[2, 2], strides=[1, 2])
        yield cls.sample(x, normal(rng, 3, 2, 1, 1), bias, strides=[2, 2])
        yield cls.sample(x, w, auto_pad="SAME_UPPER", strides=[2, 2])
        yield cls.sample(x, normal(rng, 3, 2, 2, 2), auto_pad="SAME_LOWER")
        yield cls.sample(x, w, auto_pad="VALID")
        depthwise = normal(rng, 2, 1, 3, 3)
        yield cls.sample(x, depthwise, normal(rng, 2), group=2, pads=[1, 1, 1, 1])
        yield cls.sample(x, normal(rng, 4, 1, 2, 2), group=2)
        yield cls.sample(
            normal(rng, 2, 4, 3, 3), normal(rng, 6, 2, 2, 2), normal(rng, 6), group=2, pads=[0, 0, 1, 1]
        )
        yield cls.sample(normal(rng, 1, 2, 7), normal(rng, 2, 2, 3), pads=[1, 1], strides=[2])
        yield cls.sample(normal(rng, 1, 1, 3, 3, 3), normal(rng, 2, 1, 2, 2, 2), pads=[0, 1, 0, 0, 0, 0])
        yield cls.sample(x.astype(np.float16), w.astype(np.float16), bias.astype(np.float16))
