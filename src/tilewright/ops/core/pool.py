"""Max and average pools over 1 to 3 spatial axes: a block `<name>_pad` if the windows leave the input, a reduction,
and for averages the division."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ml_dtypes
import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    BinaryOp,
    Buffer,
    Const,
    Expr,
    as_index,
    binary,
    cast,
    const,
    equal,
    maximum,
    minimum,
    select,
)
from tilewright.ops.axes import FLOATS, NUMBERS, accumulator, narrow, widen
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.window import Window, check_rank
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import is_at_most
from tilewright.tir.build import FuncBuilder, identity


def pool_window(node: OnnxNode) -> Window:
    kernel = node.integers("kernel_shape")
    if kernel is None:
        raise UserError(f"{node.op_type} has no kernel_shape")
    return Window.from_onnx(node, check_rank(node), kernel)


def infer_pool(
    op: Op, inputs: Sequence[TensorType], window: Window, takes: Collection[DType]
) -> tuple[TensorType]:
    """The type of a pool's output."""
    op.check_arity(inputs, 1)
    (x,) = inputs
    if x.dtype not in takes:
        raise op.misfit(inputs, f"not defined for {x.dtype.value}")
    if x.rank != len(window.kernel) + 2:
        raise op.misfit(inputs, f"the window is {list(window.kernel)}")
    places = window.outputs(x.shape[2:])
    # Without `ceil` ONNX's formula has no window, and onnxruntime one that reaches beyond the padding.
    if places is None or (0 in places and not window.ceil):
        raise op.misfit(inputs, "the padded input is smaller than the window")
    return (TensorType(x.dtype, (*x.shape[:2], *places)),)


@dataclass(frozen=True, slots=True)
class MaxPool(Op):
    """The maximum of each window; NaN wins. If it is `indexed`, a second output says where in the whole tensor the
    first one is; in `columns` the first spatial axis counts fastest instead of the last.
    """

    onnx = ("MaxPool",)
    kind = Kind.REDUCTION
    window: Window
    indexed: bool = False
    columns: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(pool_window(node), node.outputs > 1, bool(node.integer("storage_order", 0))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (out,) = infer_pool(self, inputs, self.window, NUMBERS)
        return (out, TensorType(DType.I64, out.shape)) if self.indexed else (out,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        out = self.infer([TensorType(x.dtype, x.shape)])[0]
        rank, window = len(self.window.kernel), self.window
        lowest = identity("max", x.dtype)
        assert isinstance(lowest, Const)
        padded = window.pad(b, x, out.shape[2:], lowest.value, f"{name}_pad")

        def tap(*i: Expr) -> Expr:
            return padded[(*i[:2], *window.taps(i[2 : 2 + rank], i[2 + rank :]))]

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        best = b.reduce(name, out.shape, window.kernel, tap, "max", axes=axes)
        return (best, self._indices(b, x, best, name)) if self.indexed else (best,)

    def _indices(self, b: FuncBuilder, x: Buffer, best: Buffer, name: str) -> Buffer:
        """The first tap that equals the maximum, counted along the spatial axes; then its place in the tensor."""
        rank, window, spatial = len(self.window.kernel), self.window, x.shape[2:]
        size = math.prod(spatial)

        def place(*i: Expr) -> Expr:
            taps = window.taps(i[2 : 2 + rank], i[2 + rank :])
            at = [t - low for t, low in zip(taps, window.before, strict=True)]
            inside = [test for p, n in zip(at, spatial, strict=True) for test in (const(0) <= p, p < n)]
            value = x[(*i[:2], *at)]
            found = equal(value, best[i[: 2 + rank]])
            if x.dtype.is_float:
                found = binary(BinaryOp.OR, found, binary(BinaryOp.NE, value, value))
            flat: Expr = const(0)
            for p, n in zip(at, spatial, strict=True):
                flat = flat * n + p
            return select(logical_and(*inside), select(found, flat, as_index(size)), as_index(size))

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        first = b.reduce(f"{name}_first", best.shape, window.kernel, place, "min", axes=axes)

        def index(*i: Expr) -> Expr:
            flat = minimum(first[i], size - 1)  # a window may lie on nothing but padding
            if self.columns:
                rest, column_major, weight = flat, const(0), size
                for n in reversed(spatial):
                    weight //= n
                    column_major, rest = column_major + rest % n * weight, rest // n
                flat = column_major
            return (i[0] * x.shape[1] + i[1]) * size + flat

        return b.compute(f"{name}_1", best.shape, index, axes=axes[: 2 + rank])

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        out = self.infer([TensorType.of(t) for t in inputs])[0]
        x = inputs[0]
        lowest = -np.inf if out.dtype.is_float else np.iinfo(x.dtype).min
        rank, places = len(self.window.kernel), out.shape[2:]
        taps = tuple(range(-rank, 0))
        views = self.window.view(x, places, lowest)
        best = views.max(taps)
        if not self.indexed:
            return (best,)
        size = math.prod(x.shape[2:])
        order = "F" if self.columns else "C"
        numbers = np.arange(size).reshape(x.shape[2:])
        flat = self.window.view(numbers[None, None], places, -1)
        found = ((views == best[(..., *[None] * rank)]) | (views != views)) & (flat >= 0)
        first = np.where(found, flat, size).min(taps)
        column_major = np.arange(size).reshape(x.shape[2:], order=order).reshape(-1)
        shape = (*x.shape[:2], *(1,) * rank)
        planes = np.arange(math.prod(shape)).reshape(shape)
        return best, column_major[np.minimum(first, size - 1)] + planes * size

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 5, 6)
        yield cls.sample(x, kernel_shape=[2, 2], strides=[2, 2])
        yield cls.sample(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        yield cls.sample(x, kernel_shape=[3, 2], pads=[0, 1, 1, 0], dilations=[1, 2])
        yield cls.sample(x, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[7, 8], strides=[3, 3], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[2, 2], auto_pad="SAME_UPPER", strides=[2, 2])
        yield cls.sample(x, kernel_shape=[3, 2], auto_pad="SAME_LOWER", strides=[2, 1])
        yield cls.sample(x, kernel_shape=[3, 2], auto_pad="VALID", strides=[2, 1])
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2])
        yield cls.sample(normal(rng, 1, 1, 2, 3, 3), kernel_shape=[2, 2, 2])
        special = np.where(x > 1, np.nan, np.where(x < 0, -np.inf, x)).astype(np.float32)
        yield cls.sample(special, kernel_shape=[2, 2])
        small = rng.integers(0, 4, (2, 2, 4, 4))
        for dtype in (np.uint8, np.int8):
            yield cls.sample(small.astype(dtype), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        yield cls.sample(x.astype(np.float16), kernel_shape=[3, 3])
        yield cls.sample(x.astype(np.float64), kernel_shape=[3, 3])
        even = small.astype(np.float32)
        for order in (0, 1):
            indexed: dict[str, Any] = {"storage_order": order, "outputs": 2}
            yield cls.sample(even, kernel_shape=[2, 2], strides=[2, 2], **indexed)
            yield cls.sample(even, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1], **indexed)
            yield cls.sample(normal(rng, 1, 2, 3, 4, 3), kernel_shape=[2, 2, 2], **indexed)
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2], ceil_mode=1, outputs=2)
        yield cls.sample(x, kernel_shape=[2, 2], dilations=[2, 2], outputs=2)
        yield Sample(cls(Window((2, 2), (1, 1), (1, 1), (1, 1), (0, 0)), True), (special,))


@dataclass(frozen=True, slots=True)
class AveragePool(Op):
    """The mean of each window. Padding counts as zeros if `include_pad`, and not at all otherwise; what a window with
    `ceil` covers beyond the padding never counts."""

    onnx = ("AveragePool",)
    kind = Kind.REDUCTION
    window: Window
    include_pad: bool = False

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(pool_window(node), bool(node.integer("count_include_pad", 0))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return infer_pool(self, inputs, self.window, FLOATS)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        rank, window, wide = len(self.window.kernel), self.window, accumulator(x.dtype)
        padded = window.pad(b, x, out.shape[2:], 0, f"{name}_pad")

        def tap(*i: Expr) -> Expr:
            return cast(wide, padded[(*i[:2], *window.taps(i[2 : 2 + rank], i[2 + rank :]))])

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        total = b.reduce(f"{name}_sum", out.shape, window.kernel, tap, "sum", axes=axes)

        def mean(*i: Expr) -> Expr:
            count: Expr = const(1)
            for d, place in enumerate(i[2:]):
                count = count * self._count(d, place, x.shape[2 + d], out.shape[2 + d])
            return cast(x.dtype, total[i] / cast(wide, count))

        return (b.compute(name, out.shape, mean, axes=axes[: 2 + rank]),)

    def _span(self, d: int, extent: int) -> tuple[int, int]:
        """The part of the padded axis d that counts."""
        low, high = self.window.before[d], self.window.before[d] + extent
        return (0, high + self.window.after[d]) if self.include_pad else (low, high)

    def _count(self, d: int, place: Expr, extent: int, places: int) -> Expr:
        """How many taps of the window at `place` lie inside the span."""
        (low, high), kernel = self._span(d, extent), self.window.kernel[d]
        stride, step = self.window.strides[d], self.window.dilations[d]
        begin = place * stride
        last = (places - 1) * stride + self.window.reach(d)
        first: Expr = const(0)
        end: Expr = const(kernel)
        if low:
            first = maximum((as_index(low + step - 1) - begin) // step, 0)
        if not is_at_most(last, high):
            end = minimum((as_index(high + step - 1) - begin) // step, kernel)
        return end - first

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        rank, places = len(self.window.kernel), out.shape[2:]
        taps = tuple(range(-rank, 0))
        x = widen(inputs[0])
        spans = [self._span(d, n) for d, n in enumerate(x.shape[2:])]
        counted = np.ones((1, 1, *(high - low for low, high in spans)))
        frame = (
            self.window
            if not self.include_pad
            else Window(
                self.window.kernel, self.window.strides, self.window.dilations, (0,) * rank, (0,) * rank
            )
        )
        counts = frame.view(counted, places, 0.0).sum(taps)
        with np.errstate(all="ignore"):
            return (narrow(self.window.view(x, places, 0.0).sum(taps) / counts, out.dtype),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 5, 6)
        yield cls.sample(x, kernel_shape=[2, 2], strides=[2, 2])
        for include in (0, 1):
            padded: dict[str, Any] = {
                "kernel_shape": [3, 3],
                "pads": [1, 1, 1, 1],
                "count_include_pad": include,
            }
            yield cls.sample(x, strides=[2, 2], **padded)
            yield cls.sample(x, strides=[3, 3], ceil_mode=1, **padded)
            larger: dict[str, Any] = {**padded, "kernel_shape": [5, 3]}
            yield cls.sample(x[:, :, :2], strides=[2, 2], ceil_mode=1, **larger)
            yield cls.sample(x, opset=19, dilations=[2, 1], strides=[1, 2], **padded)
        yield cls.sample(x, kernel_shape=[2, 3], auto_pad="SAME_LOWER", strides=[2, 2])
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2], ceil_mode=1)
        yield cls.sample(x.astype(np.float16), kernel_shape=[3, 3])
        yield cls.sample(x.astype(np.float64), kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 1])
        yield cls.sample(normal(rng, 1, 2, 3, 4, 3), kernel_shape=[2, 2, 2], pads=[0, 1, 0, 0, 0, 1])
        op = cls.sample(x, kernel_shape=[3, 3], auto_pad="VALID").op
        yield Sample(op, (x.astype(ml_dtypes.bfloat16),))
