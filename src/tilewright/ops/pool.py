"""Max and average pools over 1 to 3 spatial axes: a block `<name>_pad` if the windows leave the input, a reduction,
and for averages the division."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.expr import Buffer, Const, Expr, cast, const, maximum, minimum
from tilewright.ops.axes import FLOATS, NUMBERS, accumulator, narrow, widen
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.ops.window import Window, check_rank
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder, identity


def _window(node: OnnxNode) -> Window:
    kernel = node.integers("kernel_shape")
    if kernel is None:
        raise UserError(f"{node.op_type} has no kernel_shape")
    return Window.from_onnx(node, check_rank(node), kernel)


def _infer(op: "MaxPool | AveragePool", inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    op.check_arity(inputs, 1)
    (x,) = inputs
    if x.dtype not in (FLOATS if isinstance(op, AveragePool) else NUMBERS):
        raise op.misfit(inputs, f"not defined for {x.dtype.value}")
    if x.rank != len(op.window.kernel) + 2:
        raise op.misfit(inputs, f"the window is {list(op.window.kernel)}")
    places = op.window.outputs(x.shape[2:])
    if places is None:
        raise op.misfit(inputs, "the padded input is smaller than the window")
    return (TensorType(x.dtype, (*x.shape[:2], *places)),)


@dataclass(frozen=True, slots=True)
class MaxPool(Op):
    """The maximum of each window; NaN wins."""

    onnx = ("MaxPool",)
    kind = Kind.REDUCTION
    window: Window

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        node.one_output("indices")
        return cls(_window(node)), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return _infer(self, inputs)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])
        rank, window = len(self.window.kernel), self.window
        lowest = identity("max", x.dtype)
        assert isinstance(lowest, Const)
        padded = window.pad(b, x, out.shape[2:], lowest.value, f"{name}_pad")

        def tap(*i: Expr) -> Expr:
            return padded[(*i[:2], *window.taps(i[2 : 2 + rank], i[2 + rank :]))]

        axes = ["n", "c", *window.axes(), *window.kernel_axes()]
        return (b.reduce(name, out.shape, window.kernel, tap, "max", axes=axes),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x = inputs[0]
        lowest = -np.inf if out.dtype.is_float else np.iinfo(x.dtype).min
        rank = len(self.window.kernel)
        return (self.window.view(x, out.shape[2:], lowest).max(tuple(range(-rank, 0))),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 1, 2, 5, 6)
        yield cls.sample(x, kernel_shape=[2, 2], strides=[2, 2])
        yield cls.sample(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        yield cls.sample(x, kernel_shape=[3, 2], pads=[0, 1, 1, 0], dilations=[1, 2])
        yield cls.sample(x, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)
        yield cls.sample(x, kernel_shape=[2, 2], auto_pad="SAME_UPPER", strides=[2, 2])
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2])
        yield cls.sample(normal(rng, 1, 1, 2, 3, 3), kernel_shape=[2, 2, 2])
        special = np.where(x > 1, np.nan, np.where(x < 0, -np.inf, x)).astype(np.float32)
        yield cls.sample(special, kernel_shape=[2, 2])
        yield cls.sample(
            rng.integers(0, 9, (1, 1, 4, 4)).astype(np.uint8), kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )


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
        return cls(_window(node), bool(node.integer("count_include_pad", 0))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return _infer(self, inputs)

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
            first = maximum((const(low + step - 1) - begin) // step, 0)
        if last > high:
            end = minimum((const(high + step - 1) - begin) // step, kernel)
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
            yield cls.sample(x, opset=19, dilations=[2, 1], strides=[1, 2], **padded)
        yield cls.sample(x, kernel_shape=[2, 3], auto_pad="SAME_LOWER", strides=[2, 2])
        yield cls.sample(normal(rng, 2, 1, 7), kernel_shape=[3], strides=[2], ceil_mode=1)
        yield cls.sample(x.astype(np.float16), kernel_shape=[3, 3])
