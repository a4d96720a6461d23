"""Contractions of short integers, summed in i32: MatMulInteger, ConvInteger, and what the quantised ops share of them.

Blocks: operands whose zero point is not 0 are brought to 16 bits without it first, `<name>_a` and `<name>_b` (for a
convolution `<name>_x`, padded, and `<name>_w`); what reads only weights is computed at compile time. Then one plain
contraction follows, which is what instructions for dot products compute.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, TypeVar

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, cast, maximum, minimum
from tilewright.ops.axes import try_broadcast
from tilewright.ops.core.contraction import load_matrix
from tilewright.ops.core.conv import contract
from tilewright.ops.core.quantize import centred_array
from tilewright.ops.core.window import Window, check_rank
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder

BYTES = frozenset({DType.I8, DType.U8})

T = TypeVar("T")
# Numbers that weights are known to lie within: those beyond count as the nearest. Some instructions want to know it.
Within: TypeAlias = tuple[int, int] | None


def optional_inputs(has: Sequence[bool], inputs: Sequence[T]) -> list[T | None]:
    """The inputs of an ONNX node, None for those that are left out."""
    given = iter(inputs)
    return [next(given) if h else None for h in has]


def zero_point_is_needed(node: OnnxNode, i: int) -> bool:
    """Is input i a zero point that may differ from 0?"""
    if not node.has(i):
        return False
    known = node.constant(i)
    return known is None or bool(known.any())


# ------------------------------------------------------------------- parameters that belong to rows and to columns


def aligned(shape: tuple[int, ...], rows: bool) -> tuple[int, ...]:
    """The shape by which a scale or zero point broadcasts to a matrix. A vector has one element for each row (`rows`)
    or column."""
    if math.prod(shape) == 1:
        return ()
    return (*shape, 1) if rows and len(shape) == 1 else shape


def load_aligned(p: Buffer, rows: bool, i: Sequence[Expr], full: Sequence[int]) -> Expr:
    """The scale or zero point of element i of a matrix of shape `full`."""
    shape = aligned(p.shape, rows)
    if not shape:
        return p[(0,) * len(p.shape)]
    lead = len(full) - len(shape)
    at = [v if n == f else 0 for n, v, f in zip(shape, i[lead:], full[lead:], strict=True)]
    return p[tuple(at[: len(p.shape)])]


def aligned_array(p: Array, rows: bool) -> Array:
    return p.reshape(aligned(p.shape, rows))


def fits_matrix(p: TensorType | None, rows: bool, matrix: tuple[int, ...]) -> bool:
    """Does a scale or zero point belong to a matrix of this shape?"""
    return p is None or try_broadcast([aligned(p.shape, rows), matrix]) == matrix


# ---------------------------------------------------------------------------------------------------------- blocks


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of numpy's matmul, or None."""
    if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
        return None
    batch = try_broadcast([a[:-2], b[:-2]])
    return None if batch is None else (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def without_zero_point(b: FuncBuilder, x: Buffer, zero: Buffer | None, rows: bool, name: str) -> Buffer:
    """A block with x - zero point; x itself if there is none."""
    if zero is None:
        return x

    def element(*i: Expr) -> Expr:
        return cast(DType.I16, x[i]) - cast(DType.I16, load_aligned(zero, rows, i, x.shape))

    return b.compute(name, x.shape, element)


def clamped(weight: Expr, within: Within) -> Expr:
    return weight if within is None else minimum(maximum(weight, within[0]), within[1])


def clipped(weights: Array, within: Within) -> Array:
    return weights if within is None else np.clip(weights, *within)


def integer_matmul(
    b: FuncBuilder,
    a: Buffer,
    w: Buffer,
    a_zero: Buffer | None,
    w_zero: Buffer | None,
    name: str,
    label: str,
    within: Within = None,
) -> Buffer:
    """The block `label` with the products of a and w, without their zero points, summed up in i32."""
    left = without_zero_point(b, a, a_zero, True, f"{name}_a")
    right = without_zero_point(b, w, w_zero, False, f"{name}_b")
    shape = matmul_shape(a.shape, w.shape)
    assert shape is not None
    rows, cols = len(a.shape) > 1, len(w.shape) > 1
    batch = shape[: len(shape) - rows - cols]

    def product(*i: Expr) -> tuple[Expr, Expr]:
        *at, k = i
        outer, inner = at[: len(batch)], at[len(batch) :]
        m, n = inner[:1] if rows else [], inner[-1:] if cols else []
        p, q = load_matrix(left, outer, batch, [*m, k]), load_matrix(right, outer, batch, [k, *n])
        return cast(DType.I32, p), clamped(cast(DType.I32, q), within)

    axes = [f"b{d}" for d in range(len(batch))] + ["m"] * rows + ["n"] * cols + ["k"]
    return b.reduce(label, shape, a.shape[-1:], product, "sum", axes=axes)


def integer_matmul_array(a: Array, w: Array, a_zero: Array | None, w_zero: Array | None) -> Array:
    left = centred_array(a, None if a_zero is None else aligned_array(a_zero, True))
    right = centred_array(w, None if w_zero is None else aligned_array(w_zero, False))
    return np.asarray(np.matmul(left, right))


# ------------------------------------------------------------------------------------------------------------- ops


@dataclass(frozen=True, slots=True)
class MatMulInteger(Op):
    """A zero point belongs to the whole matrix, to each row of the left one, or to each column of the right one."""

    onnx = ("MatMulInteger",)
    kind = Kind.CONTRACTION
    has_zero_points: tuple[bool, bool] = (False, False)
    within: Within = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        a, b = (zero_point_is_needed(node, i) for i in (2, 3))
        return cls((a, b)), (0, 1, *((2,) if a else ()), *((3,) if b else ()))

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2 + sum(self.has_zero_points))
        a, b, a_zero, b_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert a is not None and b is not None
        for x, zero, rows in ((a, a_zero, True), (b, b_zero, False)):
            if x.dtype not in BYTES or (zero is not None and zero.dtype is not x.dtype):
                raise self.misfit(inputs, "only i8 and u8, with zero points of the same type")
            if not fits_matrix(zero, rows, x.shape):
                raise self.misfit(inputs, "a zero point does not fit")
        shape = matmul_shape(a.shape, b.shape)
        if shape is None:
            raise self.misfit(inputs, "the shapes cannot be multiplied")
        if b_zero is not None and self.within is not None:
            raise self.misfit(inputs, "weights with a zero point are not bounded")
        return (TensorType(DType.I32, shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, w, x_zero, w_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert x is not None and w is not None
        return (integer_matmul(b, x, w, x_zero, w_zero, name, name, self.within),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, a_zero, b_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert a is not None and b is not None
        return (integer_matmul_array(a, clipped(b, self.within), a_zero, b_zero),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for left in (np.uint8, np.int8):
            for right in (np.uint8, np.int8):
                a, b = random_bytes(rng, left, 3, 5), random_bytes(rng, right, 5, 4)
                yield cls.sample(a, b)
                yield cls.sample(a, b, np.array(7, left), np.array(3, right), runtime=(2, 3))
                yield cls.sample(a, b, np.array(0, left), np.array([1, 0, 2, 3], right))
        a, b = random_bytes(rng, np.uint8, 2, 1, 3, 5), random_bytes(rng, np.int8, 3, 5, 4)
        yield cls.sample(a, b, np.array(9, np.uint8))
        yield cls.sample(a[0, 0, 0], b, np.array(9, np.uint8))
        yield cls.sample(a, b[0, :, 0].copy())
        rows = np.array([1, 2, 3], np.uint8)
        yield Sample(cls((True, False)), (a[0, 0], b[0], rows))
        yield Sample(cls((True, False)), (a[0], b, np.full((1, 3, 1), 4, np.uint8)))
        yield Sample(cls(within=(-64, 64)), (a[0], random_bytes(rng, np.int8, 5, 4)))


def random_bytes(rng: np.random.Generator, dtype: type[np.integer], *shape: int) -> Array:
    """All of u8, but half of i8: onnxruntime's sums of larger products saturate on some machines."""
    low, high = (0, 256) if dtype is np.uint8 else (-64, 64)
    return rng.integers(low, high, shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class Channels:
    """How a convolution of bytes is done: the window, the groups, and what is known of the weights. Zero points are of
    the input, and of the weights or each of their output channels."""

    window: Window
    group: int = 1
    within: Within = None

    @staticmethod
    def from_onnx(node: OnnxNode, weight: TensorType) -> "Channels":
        spatial = check_rank(node)
        kernel = node.integers("kernel_shape") or weight.shape[2:]
        if kernel != weight.shape[2:]:
            raise UserError(f"kernel_shape {list(kernel)} is not that of the weights {weight}")
        return Channels(Window.from_onnx(node, spatial, kernel), node.integer("group", 1))

    def infer(self, op: Op, inputs: Sequence[TensorType], x: TensorType, w: TensorType) -> tuple[int, ...]:
        """The shape of the result."""
        rank = len(self.window.kernel)
        if x.dtype not in BYTES or w.dtype not in BYTES:
            raise op.misfit(inputs, "only i8 and u8")
        if x.rank != rank + 2 or w.rank != rank + 2 or w.shape[2:] != self.window.kernel:
            raise op.misfit(inputs, f"the window is {list(self.window.kernel)}")
        if self.group < 1 or w.shape[1] * self.group != x.shape[1] or w.shape[0] % self.group:
            raise op.misfit(inputs, f"the channels do not fit {self.group} group(s)")
        places = self.window.outputs(x.shape[2:])
        if places is None:
            raise op.misfit(inputs, "the padded input is smaller than the window")
        return (x.shape[0], w.shape[0], *places)

    def check_zero_point(
        self, op: Op, inputs: Sequence[TensorType], x: TensorType, zero: TensorType | None, channels: int
    ) -> None:
        """`channels`: how many elements it may have, besides one."""
        if zero is None:
            return
        if zero.dtype is not x.dtype:
            raise op.misfit(inputs, "a zero point has another type")
        if math.prod(zero.shape) != 1 and zero.shape != (channels,):
            raise op.misfit(inputs, "a zero point does not fit")

    def compute(
        self,
        b: FuncBuilder,
        x: Buffer,
        w: Buffer,
        x_zero: Buffer | None,
        w_zero: Buffer | None,
        shape: tuple[int, ...],
        name: str,
        label: str,
    ) -> Buffer:
        """The block `label` with the sums, in i32. Padding is 0 once the zero point is subtracted."""

        def weight(*i: Expr) -> Expr:
            assert w_zero is not None
            return cast(DType.I16, w[i]) - cast(DType.I16, load_channel(w_zero, i[0]))

        image = without_zero_point(b, x, x_zero, True, f"{name}_x")
        padded = self.window.pad(b, image, shape[2:], 0, f"{name}_pad")
        weights = w if w_zero is None else b.compute(f"{name}_w", w.shape, weight)
        out = TensorType(DType.I32, shape)
        return contract(
            b, padded, weights, self.window, self.group, out, label, lambda e: clamped(e, self.within)
        )

    def array(
        self, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, shape: tuple[int, ...]
    ) -> Array:
        rank, g = len(self.window.kernel), self.group
        image = centred_array(x, None if x_zero is None else x_zero.reshape(()))
        weights = centred_array(
            clipped(w, self.within), None if w_zero is None else channel_array(w_zero, rank)[0][:, None]
        )
        views = self.window.view(image, shape[2:], 0)
        views = views.reshape(x.shape[0], g, x.shape[1] // g, *views.shape[2:])
        weights = weights.reshape(g, w.shape[0] // g, *w.shape[1:])
        places, taps = "xyz"[:rank], "uvw"[:rank]
        return np.einsum(f"ngi{places}{taps},goi{taps}->ngo{places}", views, weights).reshape(shape)


def load_channel(p: Buffer, channel: Expr) -> Expr:
    """A parameter that there is one of, or one for each channel."""
    return p[(0,) * len(p.shape)] if p.size == 1 else p[channel]


def channel_array(p: Array, rank: int) -> Array:
    """The same, as [1, channels, 1…] over `rank` spatial axes."""
    return p.reshape(1, -1, *[1] * rank)


@dataclass(frozen=True, slots=True)
class ConvInteger(Op):
    """A zero point belongs to all inputs, and to all weights or to each output channel of them."""

    onnx = ("ConvInteger",)
    kind = Kind.CONTRACTION
    channels: Channels
    has_zero_points: tuple[bool, bool] = (False, False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x, w = (zero_point_is_needed(node, i) for i in (2, 3))
        taken = (0, 1, *((2,) if x else ()), *((3,) if w else ()))
        return cls(Channels.from_onnx(node, node.input(1)), (x, w)), taken

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 2 + sum(self.has_zero_points))
        x, w, x_zero, w_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert x is not None and w is not None
        shape = self.channels.infer(self, inputs, x, w)
        if w_zero is not None and self.channels.within is not None:
            raise self.misfit(inputs, "weights with a zero point are not bounded")
        self.channels.check_zero_point(self, inputs, x, x_zero, 1)
        self.channels.check_zero_point(self, inputs, w, w_zero, w.shape[0])
        return (TensorType(DType.I32, shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(t.dtype, t.shape) for t in inputs])
        x, w, x_zero, w_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert x is not None and w is not None
        total = self.channels.compute(b, x, w, x_zero, w_zero, out.shape, name, f"{name}_conv")
        # A block of its own, though it only copies, so that the sums may have another layout than the output.
        return (
            b.compute(name, out.shape, lambda *i: total[i], axes=["n", "o", *self.channels.window.axes()]),
        )

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (out,) = self.infer([TensorType.of(t) for t in inputs])
        x, w, x_zero, w_zero = optional_inputs((True, True, *self.has_zero_points), inputs)
        assert x is not None and w is not None
        return (self.channels.array(x, w, x_zero, w_zero, out.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, w = random_bytes(rng, np.uint8, 1, 2, 5, 4), random_bytes(rng, np.int8, 3, 2, 3, 3)
        yield cls.sample(x, w)
        yield cls.sample(x, w, np.array(100, np.uint8), pads=[1, 1, 1, 1], runtime=(2,))
        yield cls.sample(x, w, np.array(7, np.uint8), np.array(3, np.int8), pads=[1, 0, 2, 1], strides=[2, 1])
        each = cls.sample(x, w, np.array(7, np.uint8), np.array([1, 2, 3], np.int8), dilations=[2, 1])
        yield Sample(each.op, each.inputs)  # onnxruntime has one zero point for all weights
        yield cls.sample(
            x, random_bytes(rng, np.int8, 2, 1, 3, 3), np.array(5, np.uint8), group=2, pads=[1, 1, 1, 1]
        )
        yield cls.sample(x, random_bytes(rng, np.int8, 4, 1, 2, 2), np.array(5, np.uint8), group=2)
        yield Sample(
            cls.sample(x, w, np.array(1, np.uint8)).op,
            (random_bytes(rng, np.int8, 1, 2, 5, 4), w, np.array(-3, np.int8)),
        )
        yield Sample(cls(Channels(Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0)), within=(-64, 64))), (x, w))
        yield cls.sample(
            random_bytes(rng, np.uint8, 1, 2, 7), random_bytes(rng, np.int8, 2, 2, 3), pads=[1, 1]
        )
