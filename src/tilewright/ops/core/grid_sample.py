"""GridSample: a tensor read at places that another one holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import mul
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Fma, cast, const
from tilewright.ops.axes import FLOATS, accumulator
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.sampled import FramedImage, SampledImage, sampled_output
from tilewright.ops.core.taps import (
    Edge,
    ResamplingKernel,
    bounded_places,
    first_tap,
    sampled,
    tap_index,
    tap_values,
    tap_weight,
)
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_KERNELS = {
    "nearest": ResamplingKernel.NEAREST,
    "linear": ResamplingKernel.LINEAR,
    "bilinear": ResamplingKernel.LINEAR,
    "cubic": ResamplingKernel.CUBIC,
    "bicubic": ResamplingKernel.CUBIC,
}


@dataclass(frozen=True, slots=True)
class GridSample(Op):
    """x[n, c, axes…] at grid[n, places…, axis], which counts axes from the last and has the ends of each at -1 and 1:
    the centres of the outermost elements if `aligned`, else their outer sides."""

    onnx = ("GridSample",)
    kind = Kind.REDUCTION
    kernel: ResamplingKernel
    edge: Edge
    aligned: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        mode, padding = node.text("mode", "linear"), node.text("padding_mode", "zeros")
        aligned = bool(node.integer("align_corners", 0))
        edges = {
            "zeros": Edge.ZEROS,
            "border": Edge.BORDER,
            "reflection": Edge.REFLECT_CENTRES if aligned else Edge.REFLECT_SIDES,
        }
        if mode not in _KERNELS or padding not in edges:
            raise UserError(f"GridSample: mode '{mode}' with padding_mode '{padding}' is not supported")
        return cls(_KERNELS[mode], edges[padding], aligned), (0, 1)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2)
        x, grid = inputs
        if grid.dtype not in FLOATS:
            raise self.misfit(inputs, "places must be floats")
        if x.dtype is DType.BOOL and self.kernel is not ResamplingKernel.NEAREST:
            raise self.misfit(inputs, "only numbers can be interpolated")
        if x.rank < 3 or grid.rank != x.rank or grid.shape[-1] != x.rank - 2 or grid.shape[0] != x.shape[0]:
            raise self.misfit(inputs, "[n, c, axes…] and [n, places…, axis] are needed")
        if 0 in x.shape[2:]:
            raise self.misfit(inputs, "an empty axis cannot be sampled")
        return (TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, grid = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        wide = accumulator(x.dtype) if x.dtype in FLOATS else DType.F32
        rank = len(x.shape) - 2

        def places(d: int) -> Buffer:
            def place(*i: Expr) -> Expr:
                g = cast(accumulator(grid.dtype), grid[(*i, rank - 1 - d)]) + 1
                n = x.shape[2 + d]
                return g / 2 * (n - 1) if self.aligned else (g * n - 1) / 2

            return bounded_places(
                b, f"{name}_{d}", grid.shape[:-1], place, x.shape[2 + d], self.kernel, self.edge
            )

        along = [places(d) for d in range(rank)]
        if self.kernel is not ResamplingKernel.NEAREST and FramedImage.suits(x, grid):
            return (self._framed(b, x, along, name, wide),)
        image = SampledImage.of(b, x, f"{name}_image", zeros=self.edge is Edge.ZEROS)
        taps = [
            self._tap(b, image, along, f"{name}_tap{k}", [const(t) for t in chosen], wide)
            for k, chosen in enumerate(product(range(self.kernel.value), repeat=rank))
        ]

        def element(n: Expr, c: Expr, p: Sequence[Expr]) -> Expr:
            total: Expr | None = None
            for at, weight in taps:
                value = image.read(n, c, at[(n, *p)])
                if weight is None:
                    return value
                value, factor = cast(wide, value), weight[(n, *p)]
                total = value * factor if total is None else Fma(value, factor, total)
            assert total is not None
            return total

        return (sampled_output(b, image, name, out.shape, element, x.dtype),)

    def _framed(self, b: FuncBuilder, x: Buffer, along: Sequence[Buffer], name: str, wide: DType) -> Buffer:
        """With few channels: one index for all taps of a place, and weights in vectors of places."""
        image = FramedImage.of(b, x, f"{name}_image", self.kernel.value, self.edge)
        shape, chosen = along[0].shape, range(self.kernel.value)

        def first(*i: Expr) -> Expr:
            return image.place(
                [
                    first_tap(p[i], extent, self.kernel, image.index_type)
                    for p, extent in zip(along, image.axes, strict=True)
                ]
            )

        at = b.compute(f"{name}_at", shape, first, axes=[f"i{d}" for d in range(len(shape))])

        def element(n: Expr, c: Expr, *p: Expr) -> Expr:
            weights = [
                [cast(wide, tap_weight(a[(n, *p)], const(t), self.kernel)) for t in chosen] for a in along
            ]
            total: Expr | None = None
            for tap in product(chosen, repeat=len(along)):
                value = cast(wide, image.read(n, c, at[(n, *p)], tap))
                factor = reduce(mul, [w[t] for w, t in zip(weights, tap, strict=True)])
                total = value * factor if total is None else Fma(value, factor, total)
            assert total is not None
            return cast(x.dtype, total)

        axes = ["n", "c", *(f"h{d}" for d in range(len(along)))]
        return b.compute(name, (*x.shape[:2], *shape[1:]), element, axes=axes)

    def _tap(
        self,
        b: FuncBuilder,
        image: SampledImage,
        along: Sequence[Buffer],
        name: str,
        chosen: Sequence[Expr],
        wide: DType,
    ) -> tuple[Buffer, Buffer | None]:
        """Where a tap of each place is, and its weight."""
        shape = along[0].shape

        def at(*i: Expr) -> Expr:
            return image.place(
                [
                    tap_index(p[i], t, extent, self.kernel, self.edge, image.index_type)
                    for p, t, extent in zip(along, chosen, image.axes, strict=True)
                ]
            )

        def weight(*i: Expr) -> Expr:
            weights = [
                cast(wide, tap_weight(p[i], t, self.kernel)) for p, t in zip(along, chosen, strict=True)
            ]
            return reduce(mul, weights)

        axes = [f"i{d}" for d in range(len(shape))]
        indices = b.compute(f"{name}_at", shape, at, axes=axes)
        if self.kernel is ResamplingKernel.NEAREST:
            return indices, None
        return indices, b.compute(f"{name}_weight", shape, weight, axes=axes)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, grid = inputs
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        rank = x.ndim - 2
        wide = x if self.kernel is ResamplingKernel.NEAREST else x.astype(np.float64)
        # Places are computed in the grid's own precision: which element is nearest may hang on it.
        g = grid.astype(accumulator(DType.of(grid.dtype)).numpy) + 1
        value = np.empty(out.shape, wide.dtype)
        for n in range(x.shape[0]):
            taps: list[tuple[Array, Array]] = []
            for d in range(rank):
                extent = x.shape[2 + d]
                along = g[n, ..., rank - 1 - d]
                place = along / 2 * (extent - 1) if self.aligned else (along * extent - 1) / 2
                taps.append(tap_values(place.astype(np.float64), extent, self.kernel, self.edge))
            value[n] = sampled(wide[n], taps)
        with np.errstate(all="ignore"):
            return (value.astype(x.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, grid = normal(rng, 2, 2, 3, 4), (normal(rng, 2, 2, 5, 2) * 1.2).astype(np.float32)
        for padding in ("zeros", "border", "reflection"):
            for mode, aligned in (
                ("bilinear", 0),
                ("bilinear", 1),
                ("nearest", 0),
                ("nearest", 1),
                ("bicubic", 1),
            ):
                yield cls.sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)
        deep, places = normal(rng, 1, 2, 3, 2, 4), normal(rng, 1, 2, 1, 3, 3)
        for mode in ("linear", "nearest"):
            for padding in ("zeros", "border", "reflection"):
                yield cls.sample(deep, places, mode=mode, padding_mode=padding, opset=20)
        yield cls.sample(x, grid, opset=20)
        rows = normal(rng, 2, 9, 3, 4)  # enough channels to lie side by side
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                yield cls.sample(rows, grid, mode=mode, padding_mode=padding)
        yield cls.sample(normal(rng, 1, 8, 3, 2, 4), places, mode="linear", opset=20)
        yield cls.sample(x.astype(np.float64), grid.astype(np.float64), mode="cubic", opset=20)
        yield Sample(
            cls(ResamplingKernel.LINEAR, Edge.BORDER), (x.astype(np.float16), grid.astype(np.float16))
        )
        yield Sample(cls(ResamplingKernel.CUBIC, Edge.ZEROS), (deep, places))
        yield Sample(cls(ResamplingKernel.NEAREST, Edge.ZEROS), ((x * 9).astype(np.int32), grid))
        far = np.array([1e30, -1e30, np.inf, -np.inf, 3.0, -1.0], np.float32).reshape(1, 1, 3, 2)
        yield Sample(cls(ResamplingKernel.LINEAR, Edge.ZEROS), (x[:1], far))
        yield Sample(cls(ResamplingKernel.NEAREST, Edge.BORDER, True), (x[:1], far))
