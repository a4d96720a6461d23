"""GridSample: a tensor read at places that another one holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast
from tilewright.ops.axes import FLOATS, accumulator
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.taps import Edge, ResamplingKernel, Taps, read, sampled, tap_values, weighted_sum
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

        def taps(d: int) -> Taps:
            def place(*i: Expr) -> Expr:
                g = cast(accumulator(grid.dtype), grid[(*i, rank - 1 - d)]) + 1
                n = x.shape[2 + d]
                return g / 2 * (n - 1) if self.aligned else (g * n - 1) / 2

            return Taps.of(b, f"{name}_{d}", grid.shape[:-1], place, x.shape[2 + d], self.kernel, self.edge)

        axes = [taps(d) for d in range(rank)]
        places, spatial = [f"p{d}" for d in range(rank)], ["n", "c"]

        def nearest(*i: Expr) -> Expr:
            return read(x, i[:2], [a.at[(i[0], *i[2:], 0)] for a in axes])

        if self.kernel is ResamplingKernel.NEAREST:
            return (b.compute(name, out.shape, nearest, axes=[*spatial, *places]),)

        def term(*i: Expr) -> tuple[Expr, Expr]:
            n, c, p, t = i[0], i[1], i[2 : 2 + rank], i[2 + rank :]
            at = [a.at[(n, *p, k)] for a, k in zip(axes, t, strict=True)]
            weight: Expr | None = None
            for a, k in zip(axes, t, strict=True):
                assert a.weight is not None
                here = cast(wide, a.weight[(n, *p, k)])
                weight = here if weight is None else weight * here
            assert weight is not None
            return cast(wide, read(x, (n, c), at)), weight

        total = weighted_sum(
            b, f"{name}_sum", out.shape, (self.kernel.value,) * rank, term, [*spatial, *places]
        )
        return (b.compute(name, out.shape, lambda *i: cast(x.dtype, total(*i)), axes=[*spatial, *places]),)

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
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                for aligned in (0, 1):
                    yield cls.sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)
        deep, places = normal(rng, 1, 2, 3, 2, 4), normal(rng, 1, 2, 1, 3, 3)
        for mode in ("linear", "nearest"):
            for padding in ("zeros", "border", "reflection"):
                yield cls.sample(deep, places, mode=mode, padding_mode=padding, opset=20)
        yield cls.sample(x, grid, opset=20)
        yield cls.sample(x.astype(np.float64), grid.astype(np.float64), mode="cubic", opset=20)
        yield Sample(
            cls(ResamplingKernel.LINEAR, Edge.BORDER), (x.astype(np.float16), grid.astype(np.float16))
        )
        yield Sample(cls(ResamplingKernel.CUBIC, Edge.ZEROS), (deep, places))
        yield Sample(cls(ResamplingKernel.NEAREST, Edge.ZEROS), ((x * 9).astype(np.int32), grid))
        far = np.array([1e30, -1e30, np.inf, -np.inf, 3.0, -1.0], np.float32).reshape(1, 1, 3, 2)
        yield Sample(cls(ResamplingKernel.LINEAR, Edge.ZEROS), (x[:1], far))
        yield Sample(cls(ResamplingKernel.NEAREST, Edge.BORDER, True), (x[:1], far))
