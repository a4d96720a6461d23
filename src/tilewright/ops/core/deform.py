"""DeformConv: a convolution whose taps are moved by offsets that are data.

Blocks: the taps of rows and columns, then the input as each tap of each window sees it, and then a plain contraction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import FLOATS, accumulator, narrow, widen
from tilewright.ops.core.conv import add_bias
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.taps import Edge, ResamplingKernel, Taps, read, sampled, tap_values
from tilewright.ops.core.window import Window, check_rank
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class DeformConv(Op):
    """x[n, c, h, w], weights [o, c / group, kh, kw], offsets [n, (offset group, kh, kw, row or column), …], then a bias
    and factors for the taps [n, (offset group, kh, kw), …], if there are any. Beyond its edges x is zero."""

    onnx = ("DeformConv",)
    kind = Kind.CONTRACTION
    window: Window
    group: int = 1
    offset_groups: int = 1
    has_bias: bool = False
    has_mask: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        spatial, weight = check_rank(node), node.input(1)
        if len(spatial) != 2:
            raise UserError(f"DeformConv of {node.input(0)}: only images are supported")
        kernel = node.integers("kernel_shape") or weight.shape[2:]
        if kernel != weight.shape[2:]:
            raise UserError(f"DeformConv: kernel_shape {list(kernel)} is not that of the weights {weight}")
        window = Window.from_onnx(node, spatial, kernel)
        groups = node.integer("group", 1), node.integer("offset_group", 1)
        return cls(window, *groups, node.has(3), node.has(4)), node.present

    def _split(self, inputs: Sequence[Buffer]) -> tuple[Buffer, Buffer, Buffer, list[Buffer], Buffer | None]:
        x, w, offset, *rest = inputs
        return x, w, offset, rest[: int(self.has_bias)], rest[-1] if self.has_mask else None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3 + self.has_bias + self.has_mask)
        x, w, offset, *rest = inputs
        if any(t.dtype is not x.dtype for t in inputs) or x.dtype not in FLOATS:
            raise self.misfit(inputs, "all must have the same float type")
        if x.rank != 4 or w.rank != 4 or w.shape[2:] != self.window.kernel or 0 in x.shape:
            raise self.misfit(inputs, f"the window is {list(self.window.kernel)}")
        if self.group < 1 or w.shape[1] * self.group != x.shape[1] or w.shape[0] % self.group:
            raise self.misfit(inputs, f"the channels do not fit {self.group} group(s)")
        if self.offset_groups < 1 or x.shape[1] % self.offset_groups:
            raise self.misfit(inputs, f"the channels do not fit {self.offset_groups} group(s) of offsets")
        places = self.window.outputs(x.shape[2:])
        if places is None or 0 in places:
            raise self.misfit(inputs, "the padded input is smaller than the window")
        taps = self.offset_groups * self.window.kernel[0] * self.window.kernel[1]
        if offset.shape != (x.shape[0], 2 * taps, *places):
            raise self.misfit(inputs, f"the offsets must be {[x.shape[0], 2 * taps, *places]}")
        if self.has_mask and rest[-1].shape != (x.shape[0], taps, *places):
            raise self.misfit(inputs, f"the mask must be {[x.shape[0], taps, *places]}")
        if self.has_bias and rest[0].shape != w.shape[:1]:
            raise self.misfit(inputs, f"the bias must have {w.shape[0]} elements")
        return (TensorType(x.dtype, (x.shape[0], w.shape[0], *places)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, w, offset, bias, mask = self._split(inputs)
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        wide, window = accumulator(x.dtype), self.window
        height, width = window.kernel
        channels = x.shape[1] // self.offset_groups  # that have the same offsets

        def tap_number(g: Expr, u: Expr, v: Expr) -> Expr:
            return (g * height + u) * width + v

        def taps(d: int) -> Taps:
            def place(n: Expr, g: Expr, u: Expr, v: Expr, p: Expr, q: Expr) -> Expr:
                plain = (p, q)[d] * window.strides[d] + (u, v)[d] * window.dilations[d] - window.before[d]
                return cast(wide, plain) + cast(wide, offset[n, tap_number(g, u, v) * 2 + d, p, q])

            shape = (x.shape[0], self.offset_groups, *window.kernel, *out.shape[2:])
            return Taps.of(
                b, f"{name}_{'yx'[d]}", shape, place, x.shape[2 + d], ResamplingKernel.LINEAR, Edge.ZEROS
            )

        rows, columns = taps(0), taps(1)
        assert rows.weight is not None and columns.weight is not None
        row_weight, column_weight = rows.weight, columns.weight

        def seen(*i: Expr) -> Expr:
            n, c, u, v, p, q = i
            at = n, c // channels, u, v, p, q
            total: Expr | None = None
            for s in (0, 1):
                for t in (0, 1):
                    weight = row_weight[(*at, s)] * column_weight[(*at, t)]
                    value = cast(wide, read(x, (n, c), [rows.at[(*at, s)], columns.at[(*at, t)]]))
                    total = value * weight if total is None else total + value * weight
            assert total is not None
            if mask is not None:
                total = total * cast(wide, mask[n, tap_number(c // channels, u, v), p, q])
            return total

        views = b.compute(
            f"{name}_seen",
            (*x.shape[:2], *window.kernel, *out.shape[2:]),
            seen,
            axes=["n", "c", "kh", "kw", "h", "w"],
        )
        depth, each = w.shape[1], w.shape[0] // self.group

        def factors(*i: Expr) -> tuple[Expr, Expr]:
            n, g, o, p, q, c, u, v = i
            return views[n, g * depth + c, u, v, p, q], cast(wide, w[g * each + o, c, u, v])

        def together(*i: Expr) -> tuple[Expr, Expr]:
            n, o, p, q, c, u, v = i
            return views[n, c, u, v, p, q], cast(wide, w[o, c, u, v])

        over = (depth, *window.kernel)
        if self.group == 1:
            axes = ["n", "o", "h", "w", "i", "kh", "kw"]
            total = b.reduce(f"{name}_conv", out.shape, over, together, "sum", axes=axes)
        else:
            shape = (out.shape[0], self.group, each, *out.shape[2:])
            axes = ["n", "g", "o", "h", "w", "i", "kh", "kw"]
            grouped = b.reduce(f"{name}_groups", shape, over, factors, "sum", axes=axes)

            def joined(n: Expr, o: Expr, p: Expr, q: Expr) -> Expr:
                return grouped[n, o // each, o % each, p, q]

            total = b.compute(f"{name}_conv", out.shape, joined)
        return (add_bias(b, lambda *i: total[i], bias, window, out, name),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, w, offset, *rest = (widen(t) for t in inputs)
        window, count = self.window, self.offset_groups
        taps = (count, *window.kernel)
        moved = offset.reshape(x.shape[0], *taps, 2, *out.shape[2:])
        mask = (
            rest[-1] if self.has_mask else np.ones((x.shape[0], taps[0] * taps[1] * taps[2], *out.shape[2:]))
        )
        mask = mask.reshape(x.shape[0], *taps, *out.shape[2:])
        u, v, p, q = np.meshgrid(*(np.arange(n) for n in (*window.kernel, *out.shape[2:])), indexing="ij")
        plain = [
            place * window.strides[d] + tap * window.dilations[d] - window.before[d]
            for d, (place, tap) in enumerate(((p, u), (q, v)))
        ]
        channels = x.shape[1] // count
        views = np.empty((*x.shape[:2], *window.kernel, *out.shape[2:]))
        for n in range(x.shape[0]):
            for g in range(count):
                at = [
                    tap_values(
                        plain[d] + moved[n, g, :, :, d], x.shape[2 + d], ResamplingKernel.LINEAR, Edge.ZEROS
                    )
                    for d in (0, 1)
                ]
                part = slice(g * channels, (g + 1) * channels)
                views[n, part] = sampled(x[n, part], at) * mask[n, g]
        groups = views.reshape(x.shape[0], self.group, -1, *views.shape[2:])
        weights = w.reshape(self.group, -1, *w.shape[1:])
        total = np.einsum("ngiuvpq,goiuv->ngopq", groups, weights).reshape(out.shape)
        if self.has_bias:
            total = total + rest[0].reshape(-1, 1, 1)
        return (narrow(total, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w, bias = normal(rng, 1, 2, 4, 5), normal(rng, 3, 2, 2, 2), normal(rng, 3)
        yield cls.sample(x, w, normal(rng, 1, 8, 3, 4), opset=19)
        yield cls.sample(x, w, normal(rng, 1, 8, 5, 6) * 2, bias, pads=[1, 1, 1, 1], opset=19)
        mask = normal(rng, 1, 8, 2, 3)
        yield cls.sample(
            x,
            w,
            normal(rng, 1, 16, 2, 3),
            bias,
            mask,
            offset_group=2,
            strides=[2, 2],
            pads=[0, 1, 1, 1],
            opset=19,
        )
        yield cls.sample(
            normal(rng, 2, 4, 4, 4),
            normal(rng, 4, 2, 2, 2),
            normal(rng, 2, 8, 2, 2),
            None,
            normal(rng, 2, 4, 2, 2),
            group=2,
            dilations=[2, 2],
            opset=19,
        )
        yield cls.sample(*(a.astype(np.float64) for a in (x, w, normal(rng, 1, 8, 3, 4))), opset=19)
