"""RoiAlign: regions of a feature map, each brought to the same extents.

A region is cut into bins, and each bin has a grid of `samples` × `samples` places, which are interpolated linearly. The
places of rows and of columns are independent, so each has its own taps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Buffer,
    Expr,
    UnaryOp,
    cast,
    const,
    equal,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.ops.axes import FLOATS, accumulator, narrow
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.gather import checked_index, checked_indices
from tilewright.ops.core.sampled import SampledImage, sampled_output
from tilewright.ops.core.taps import Taps, as_float, weighted_sum
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import IndexInput, Kind, OnHost, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

_MOST_SAMPLES = 1 << 12  # per bin and axis
_MOST_BINS = 1 << 20


@dataclass(frozen=True, slots=True)
class RoiAlignment:
    """What both forms of the op share. `extents` are the bins; regions are multiplied by `scale`, and then moved by
    half an element if `centred`. `largest` says that the samples of a bin are not averaged; then each of the four
    elements around a place counts by itself, as ONNX has it.
    """

    extents: tuple[int, int]
    scale: float
    centred: bool
    largest: bool

    @staticmethod
    def from_onnx(node: OnnxNode) -> "RoiAlignment":
        mode = node.text("mode", "avg")
        # Before opset 16 places were not centred.
        convention = node.text(
            "coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel"
        )
        if mode not in ("avg", "max") or convention not in ("half_pixel", "output_half_pixel"):
            raise UserError(f"RoiAlign: mode '{mode}' with '{convention}' is not supported")
        extents = node.integer("output_height", 1), node.integer("output_width", 1)
        if min(extents) < 1 or extents[0] * extents[1] > _MOST_BINS:
            raise UserError(f"RoiAlign to {list(extents)} bins")
        return RoiAlignment(
            extents, node.real("spatial_scale", 1.0), convention == "half_pixel", mode == "max"
        )


@dataclass(frozen=True, slots=True)
class RoiAlign(Op):
    """x[n, c, h, w], regions [r, (x1, y1, x2, y2)] and the image that each is of."""

    onnx = ("RoiAlign",)
    kind = Kind.REDUCTION
    regions: RoiAlignment
    samples_per_bin: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        samples = node.integer("sampling_ratio", 0)
        if not 0 <= samples <= _MOST_SAMPLES:
            raise UserError(f"RoiAlign: {samples} samples per bin")
        if not samples:
            raise OnHost("each region says itself how many samples it needs")
        return cls(RoiAlignment.from_onnx(node), samples), (0, 1, 2)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3)
        x, regions, image = inputs
        if x.dtype not in FLOATS or regions.dtype is not x.dtype or not image.dtype.is_int:
            raise self.misfit(inputs, "two of the same float type and integers are needed")
        if x.rank != 4 or regions.shape[1:] != (4,) or image.shape != regions.shape[:1] or 0 in x.shape:
            raise self.misfit(inputs, "[n, c, h, w], [r, 4] and [r] are needed")
        return (TensorType(x.dtype, (regions.shape[0], x.shape[1], *self.regions.extents)),)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return (IndexInput(2, (inputs[0].shape[0],), from_back=False),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, regions, images = inputs
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        wide, grid = accumulator(x.dtype), self.samples_per_bin

        def taps(d: int) -> Taps:
            def place(r: Expr, p: Expr, s: Expr) -> Expr:
                start, size = self._span(cast(wide, regions[r, 1 - d]), cast(wide, regions[r, 3 - d]))
                bin_size = size / self.regions.extents[d]
                return start + cast(wide, p) * bin_size + (cast(wide, s) + 0.5) * bin_size / grid

            shape = (regions.shape[0], self.regions.extents[d], grid)
            return _edge_taps(b, f"{name}_{'yx'[d]}", shape, place, x.shape[2 + d])

        rows, columns = taps(0), taps(1)
        assert rows.weight is not None and columns.weight is not None
        row_weight, column_weight = rows.weight, columns.weight

        image = SampledImage.of(b, x, f"{name}_image", zeros=True)
        over = (grid, grid, 2, 2)

        def place(*i: Expr) -> Expr:
            r, p, q, s, t, u, v = i
            return image.place([rows.at[r, p, s, u], columns.at[r, q, t, v]])

        def weight(*i: Expr) -> Expr:
            r, p, q, s, t, u, v = i
            return row_weight[r, p, s, u] * column_weight[r, q, t, v]

        shape, axes = (out.shape[0], *self.regions.extents, *over), ["r", "y", "x", "s", "t", "u", "v"]
        at = b.compute(f"{name}_at", shape, place, axes=axes)
        weights = b.compute(f"{name}_weight", shape, weight, axes=axes)

        def term(*i: Expr) -> tuple[Expr, Expr]:
            r, c, p, q, *tap = i if not image.has_rows else (i[0], i[3], i[1], i[2], *i[4:])
            n, here = checked_index(images[r], x.shape[0]), (r, p, q, *tap)
            return cast(wide, image.read(n, c, at[here])), weights[here]

        def weighted(*i: Expr) -> Expr:
            value, factor = term(*i)
            return value * factor

        order = ["r", "y", "x", "c"] if image.has_rows else ["r", "c", "y", "x"]
        made = (out.shape[0], *out.shape[2:], out.shape[1]) if image.has_rows else out.shape
        if self.regions.largest:
            names = [*order, "s", "t", "u", "v"]
            total = b.reduce(f"{name}_max", made, over, weighted, "max", axes=names).__getitem__
        else:
            total = self._mean(weighted_sum(b, f"{name}_sum", made, over, term, order))

        def element(r: Expr, c: Expr, p: Sequence[Expr]) -> Expr:
            return total((r, *p, c) if image.has_rows else (r, c, *p))

        return (sampled_output(b, image, name, out.shape, element, out.dtype),)

    def _mean(self, total: Callable[..., Expr]) -> Callable[[tuple[Expr, ...]], Expr]:
        def mean(indices: tuple[Expr, ...]) -> Expr:
            return total(*indices) / self.samples_per_bin**2

        return mean

    def _span(self, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        """Where a region starts along an axis, and how long it is."""
        shift = 0.5 if self.regions.centred else 0.0
        start = low * self.regions.scale - shift
        size = high * self.regions.scale - shift - start
        return start, size if self.regions.centred else maximum(size, 1.0)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (align(self.regions, self.samples_per_bin, *inputs),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 2, 5, 6)
        regions = np.array([[0, 0, 4, 3], [1.5, -2, 9, 3.2], [2, 2, 2.1, 2.1], [-9, -9, -7, -8]], np.float32)
        image = np.array([0, 1, 1, 0], np.int64)
        attrs: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
        for convention in ("half_pixel", "output_half_pixel"):
            for scale in (1.0, 0.75):
                yield cls.sample(
                    x,
                    regions,
                    image,
                    spatial_scale=scale,
                    coordinate_transformation_mode=convention,
                    **attrs,
                )
        yield cls.sample(x, regions, image, opset=10, **attrs)
        yield cls.sample(x, regions, image, mode="max", **attrs)
        yield cls.sample(x.astype(np.float64), regions.astype(np.float64), image, **attrs)
        rows = normal(rng, 2, 11, 5, 6)  # enough channels to lie side by side
        for mode in ("avg", "max"):
            yield cls.sample(rows, regions, image, mode=mode, **attrs)
        many: dict[str, Any] = {**attrs, "sampling_ratio": 3}
        yield cls.sample(rows, regions, image, **many)
        half = x.astype(np.float16), regions.astype(np.float16), np.array([0, 7, -1, 0], np.int64)
        yield Sample(cls(RoiAlignment((2, 2), 1.0, True, False), 1), half)


def _edge_taps(
    b: FuncBuilder, name: str, shape: Sequence[int], place: Callable[..., Expr], extent: int
) -> Taps:
    """Two taps for each place. One that is up to an element outside is moved to the edge, others stand for zero."""
    rank = len(shape)
    axes = [f"i{d}" for d in range(rank)]
    places = b.compute(f"{name}_place", shape, place, axes=axes)

    def low(i: Sequence[Expr]) -> tuple[Expr, Expr]:
        inner = minimum(maximum(places[tuple(i)], 0.0), as_float(extent - 1, places.dtype))
        below = unary(UnaryOp.FLOOR, inner)
        return below, inner - below

    def at(*i: Expr) -> Expr:
        value = places[i[:rank]]
        inside = logical_and(const(-1.0, value.dtype) <= value, value <= as_float(extent, value.dtype))
        first = maximum(cast(DType.I32, low(i[:rank])[0]), 0)
        tap = minimum(first + cast(DType.I32, i[rank]), extent - 1)
        return select(inside, tap, const(-1, DType.I32))

    def weight(*i: Expr) -> Expr:
        share = low(i[:rank])[1]
        return select(equal(i[rank], 0), 1 - share, share)

    full = (*shape, 2)
    return Taps(
        b.compute(f"{name}_at", full, at, axes=[*axes, "t"]),
        b.compute(f"{name}_weight", full, weight, axes=[*axes, "t"]),
    )


def _edge_tap_values(place: Array, extent: int) -> tuple[Array, Array]:
    inside = (place >= -1) & (place <= extent)
    inner = np.clip(place, 0, extent - 1)
    low = np.floor(inner)
    with np.errstate(invalid="ignore"):
        at = np.minimum(np.maximum(low.astype(np.int64), 0)[:, None] + np.arange(2), extent - 1)
    share = inner - low
    return np.where(inside[:, None], at, -1), np.stack([1 - share, share], -1)


def align(regions: RoiAlignment, samples: int, x: Array, boxes: Array, image: Array) -> Array:
    """In numpy; without a number of samples per bin, each region has one for every element it covers."""
    dtype, shift = DType.of(x.dtype), 0.5 if regions.centred else 0.0
    out = np.zeros((boxes.shape[0], x.shape[1], *regions.extents))
    values = x.astype(np.float64)
    for r, n in enumerate(checked_indices(image, x.shape[0])):
        box = boxes[r].astype(np.float64) * regions.scale - shift
        axes: list[tuple[Array, Array]] = []
        for d, (bins, extent) in enumerate(zip(regions.extents, x.shape[2:], strict=True)):
            start, size = box[1 - d], box[3 - d] - box[1 - d]
            size = size if regions.centred else max(size, 1.0)
            count = samples or int(np.clip(np.ceil(size / bins), 0, _MOST_SAMPLES))
            steps = np.arange(bins)[:, None] + (np.arange(count) + 0.5) / max(count, 1)
            at, weight = _edge_tap_values((start + steps * size / bins).reshape(-1), extent)
            axes.append((at.reshape(bins, count, 2), weight.reshape(bins, count, 2)))
        out[r] = _binned(values[n], axes[0], axes[1], regions.largest)
    return narrow(out, dtype)


def _binned(x: Array, rows: tuple[Array, Array], columns: tuple[Array, Array], largest: bool) -> Array:
    """One region of x[c, h, w]: [c, bins of rows, bins of columns]."""
    (row_at, row_weight), (column_at, column_weight) = rows, columns
    if not row_at.size or not column_at.size:
        return np.zeros((x.shape[0], row_at.shape[0], column_at.shape[0]))
    shape = (row_at.shape[0], -1, column_at.shape[0], column_at.shape[1] * 2)
    v, h = row_at.reshape(-1)[:, None], column_at.reshape(-1)[None, :]
    weight = row_weight.reshape(-1)[:, None] * column_weight.reshape(-1)
    taps = np.where((v >= 0) & (h >= 0), x[:, np.maximum(v, 0), np.maximum(h, 0)], 0) * weight
    taps = taps.reshape(x.shape[0], *shape)
    if largest:
        return taps.max((2, 4))
    return taps.sum((2, 4)) / (row_at.shape[1] * column_at.shape[1])


@dataclass(frozen=True, slots=True)
class AdaptiveRoiAlign(HostOp):
    """RoiAlign whose regions have as many samples as they cover elements."""

    onnx = ("RoiAlign",)
    why = "each region says itself how many samples it needs"
    regions: RoiAlignment
    samples_per_bin: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(RoiAlignment.from_onnx(node), max(node.integer("sampling_ratio", 0), 0))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, boxes, image = (tensor(v, "an input") for v in inputs)
        RoiAlign(self.regions, 1).infer([TensorType.of(t) for t in (x, boxes, image)])
        return (align(self.regions, self.samples_per_bin, x, boxes, image),)

    def indices(self, inputs: Sequence[HostValue]) -> Sequence[IndexInput]:
        return (IndexInput(2, (tensor(inputs[0], "an input").shape[0],), from_back=False),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 2, 2, 5, 6)
        boxes = np.array([[0, 0, 4, 3], [1.5, -2, 9, 3.2], [2, 2, 2.1, 2.1]], np.float32)
        image = np.array([0, 1, 1], np.int64)
        attrs: dict[str, Any] = {"output_height": 2, "output_width": 3}
        yield HostSample("RoiAlign", (x, boxes, image), attrs, opset=16)
        yield HostSample("RoiAlign", (x, boxes, image), {**attrs, "spatial_scale": 0.5}, opset=10)


@dataclass(frozen=True, slots=True)
class MaxRoiPool(HostOp):
    """The maximum of each bin of a region, whose ends are rounded to elements; 0 for a bin without any."""

    onnx = ("MaxRoiPool",)
    why = "which elements are in a bin depends on data"
    extents: tuple[int, int]
    scale: float

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        extents = node.integers("pooled_shape") or ()
        if len(extents) != 2 or min(extents) < 1 or extents[0] * extents[1] > _MOST_BINS:
            raise UserError(f"MaxRoiPool to {list(extents)} bins")
        return cls((extents[0], extents[1]), node.real("spatial_scale", 1.0))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, boxes = (tensor(v, "an input") for v in inputs)
        if x.ndim != 4 or boxes.ndim != 2 or boxes.shape[1] != 5:
            raise UserError(
                f"MaxRoiPool of {list(x.shape)} and {list(boxes.shape)}: [n, c, h, w] and [r, 5] needed"
            )
        out = np.zeros((boxes.shape[0], x.shape[1], *self.extents), x.dtype)
        for r, box in enumerate(boxes.astype(np.float64)):
            n = int(box[0])
            if not 0 <= n < x.shape[0]:
                raise UserError(f"MaxRoiPool: region {r} is of image {n}, of which there are {x.shape[0]}")
            # Half away from zero.
            left, top, right, bottom = (int(np.trunc(v + np.copysign(0.5, v))) for v in box[1:] * self.scale)
            rows = _bins(top, bottom, self.extents[0], x.shape[2])
            columns = _bins(left, right, self.extents[1], x.shape[3])
            for p, v in enumerate(rows):
                for q, h in enumerate(columns):
                    part = x[n, :, v, h]
                    if part.size:
                        out[r, :, p, q] = part.max((1, 2))
        return (out,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = normal(rng, 2, 2, 6, 6)
        boxes = np.array([[0, 0, 0, 3, 4], [1, 2, 1, 9, 5], [1, 4, 4, 2, 2], [0, 8, 8, 9, 9]], np.float32)
        for scale in (1.0, 0.5):
            attrs: dict[str, Any] = {"pooled_shape": [2, 3], "spatial_scale": scale}
            yield HostSample("MaxRoiPool", (x, boxes), attrs, opset=20)


def _bins(first: int, last: int, count: int, extent: int) -> list[slice]:
    """The elements of each bin along an axis: bins may overlap by one."""
    size = max(last - first + 1, 1) / count
    return [
        slice(
            int(np.clip(np.floor(k * size) + first, 0, extent)),
            int(np.clip(np.ceil((k + 1) * size) + first, 0, extent)),
        )
        for k in range(count)
    ]
