"""Movement of parts of tensors: joining, cutting, padding, repeating. Each output is one block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Buffer,
    Expr,
    as_index,
    const,
    maximum,
    minimum,
    select,
)
from tilewright.ops.axes import normal_axes, normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Concat(Op):
    onnx = ("Concat",)
    kind = Kind.MOVEMENT
    moves_only = True
    axis: int

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(normal_axis(node.integer("axis", 1), node.input(0).rank)), node.present

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1, 1 << 16)
        first, a = inputs[0], self.axis
        for t in inputs:
            same_axes = (
                t.rank == first.rank > a
                and t.shape[:a] + t.shape[a + 1 :] == first.shape[:a] + first.shape[a + 1 :]
            )
            if t.dtype is not first.dtype or not same_axes:
                raise self.misfit(inputs, f"types and all extents but that of axis {a} must agree")
        along = sum(t.shape[a] for t in inputs)
        return (TensorType(first.dtype, (*first.shape[:a], along, *first.shape[a + 1 :])),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (out,) = self.infer([TensorType(x.dtype, x.shape) for x in inputs])
        parts = [x for x in inputs if x.shape[self.axis]] or [inputs[0]]
        ends = list(accumulate(x.shape[self.axis] for x in parts))

        def element(*i: Expr) -> Expr:
            at = i[self.axis]

            # A balanced tree of choices: its depth stays small however many parts there are.
            def among(low: int, high: int) -> Expr:
                if high - low > 1:
                    mid = (low + high) // 2
                    return select(at < ends[mid - 1], among(low, mid), among(mid, high))
                here = at - (ends[low] - parts[low].shape[self.axis])
                return parts[low][(*i[: self.axis], here, *i[self.axis + 1 :])]

            return among(0, len(parts))

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(list(inputs), self.axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 3), normal(rng, 2, 1), normal(rng, 2, 2), axis=-1)
        yield cls.sample(normal(rng, 1, 2), normal(rng, 3, 2), axis=0)
        yield cls.sample(normal(rng, 2, 2), axis=1)
        yield cls.sample(*(normal(rng, n) for n in (1, 3, 2, 1, 2, 4)), axis=0)
        yield cls.sample(normal(rng, 2, 2), normal(rng, 2, 0), axis=1)


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Consecutive pieces of `sizes` along an axis, one output each."""

    onnx = ("Split",)
    kind = Kind.MOVEMENT
    moves_only = True
    axis: int
    sizes: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        axis = normal_axis(node.integer("axis", 0), x.rank)
        sizes = node.given_integers(1, "split")
        if sizes is None:
            count = node.outputs
            if node.integer("num_outputs", count) != count:
                raise UserError(
                    f"Split: num_outputs is {node.attrs['num_outputs']}, but there are {count} outputs"
                )
            each = -(-x.shape[axis] // count)
            sizes = (*(each,) * (count - 1), x.shape[axis] - (count - 1) * each)
            if sizes[-1] < 0 or (node.opset < 18 and sizes[-1] != each):
                raise UserError(f"Split of {x}: axis {axis} does not divide into {count} parts")
        return cls(axis, sizes), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,), a = inputs, self.axis
        if not a < x.rank or sum(self.sizes) != x.shape[a] or any(n < 0 for n in self.sizes):
            raise self.misfit(inputs, f"pieces {list(self.sizes)} do not make up axis {a}")
        return tuple(TensorType(x.dtype, (*x.shape[:a], n, *x.shape[a + 1 :])) for n in self.sizes)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,), a = inputs, self.axis

        def piece(k: int, start: int) -> Buffer:
            shape = (*x.shape[:a], self.sizes[k], *x.shape[a + 1 :])
            label = name if k == 0 else f"{name}_{k}"
            return b.compute(label, shape, lambda *i: x[(*i[:a], i[a] + start, *i[a + 1 :])])

        starts = [end - n for n, end in zip(self.sizes, accumulate(self.sizes), strict=True)]
        return tuple(piece(k, start) for k, start in enumerate(starts))

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(np.split(inputs[0], list(accumulate(self.sizes))[:-1], self.axis))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 6)
        yield cls.sample(x, axis=1, outputs=3, opset=13)
        yield cls.sample(normal(rng, 2, 7), axis=1, outputs=4, num_outputs=4)
        yield cls.sample(x, np.array([1, 5], np.int64), axis=-1, outputs=2)
        yield cls.sample(x, opset=11, axis=1, split=[4, 2], outputs=2)


@dataclass(frozen=True, slots=True)
class Slice(Op):
    """`sizes` elements from `starts` on, `steps` apart, for every axis. A step may be negative."""

    onnx = ("Slice",)
    kind = Kind.MOVEMENT
    moves_only = True
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        begin, end = node.given_integers(1, "starts"), node.given_integers(2, "ends")
        if begin is None or end is None:
            raise UserError("Slice has no starts or no ends")
        axes = node.given_integers(3, "axes")
        axes = tuple(range(len(begin))) if axes is None else axes
        steps = node.value_integers(4, "steps") if node.has(4) else (1,) * len(begin)
        if not len(begin) == len(end) == len(axes) == len(steps) or 0 in steps:
            raise UserError("Slice: starts, ends, axes and steps differ in length, or a step is 0")
        normal_axes(axes, x.rank)  # each only once
        found = [(0, 1, n) for n in x.shape]
        for first, last, axis, step in zip(begin, end, axes, steps, strict=True):
            d = normal_axis(axis, x.rank)
            found[d] = _taken(first, last, step, x.shape[d])
        starts, strides, sizes = zip(*found, strict=True) if found else ((), (), ())
        return cls(starts, strides, sizes), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if not x.rank == len(self.starts) == len(self.steps) == len(self.sizes):
            raise self.misfit(inputs, f"the slice is of {len(self.starts)} axes")
        for n, first, step, size in zip(x.shape, self.starts, self.steps, self.sizes, strict=True):
            last = first + step * (size - 1)
            if size < 0 or (size and not (0 <= first < n and 0 <= last < n)):
                raise self.misfit(inputs, f"elements {first} to {last} of an axis of {n}")
        return (TensorType(x.dtype, self.sizes),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs

        def element(*i: Expr) -> Expr:
            return x[
                tuple(p * step + first for p, step, first in zip(i, self.steps, self.starts, strict=True))
            ]

        return (b.compute(name, self.sizes, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        places = zip(self.starts, self.steps, self.sizes, strict=True)
        return (inputs[0][np.ix_(*(first + step * np.arange(size) for first, step, size in places))],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 4, 5)

        def ints(*values: int) -> Array:
            return np.array(values, np.int64)

        yield cls.sample(x, ints(1, 0), ints(3, 4))
        yield cls.sample(x, ints(-2), ints(1 << 62), ints(-1))
        yield cls.sample(x, ints(-1, 1), ints(-(1 << 62), 5), ints(0, 1), ints(-1, 2))
        yield cls.sample(x, ints(3), ints(0), ints(1), ints(-2))
        yield cls.sample(x, opset=9, starts=[1], ends=[-1], axes=[1])


def _taken(first: int, last: int, step: int, extent: int) -> tuple[int, int, int]:
    """Where a slice begins, its step, and how many elements it has: Python's rules, also for open sizes."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def clamped(n: int) -> int:
        n = n + extent if n < 0 else n
        return low if n < low else high if n > high else n

    first, last = clamped(first), clamped(last)
    count = (last - first + step - 1) // step if step > 0 else (first - last - step - 1) // -step
    return (first, step, count) if count > 0 else (0, step, 0)


@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Elements added before and after every axis; negative numbers cut them off.

    `mode` says what is added: "constant" is `value`, "edge" the nearest element, "reflect" the mirror image without the
    edge itself, "wrap" the other end; what is cut off is not repeated.
    """

    onnx = ("Pad",)
    kind = Kind.MOVEMENT
    moves_only = True
    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x, mode = node.input(0), node.text("mode", "constant")
        if mode not in ("constant", "edge", "reflect", "wrap"):
            raise UserError(f"Pad: unknown mode '{mode}'")
        pads = node.given_integers(1, "pads")
        if pads is None:
            raise UserError("Pad has no pads")
        axes = node.value_integers(3, "axes") if node.has(3) else tuple(range(x.rank))
        if len(pads) != 2 * len(axes):
            raise UserError(f"Pad of {x}: {len(pads)} pads for {len(axes)} axes")
        normal_axes(axes, x.rank)  # each only once
        before, after = [0] * x.rank, [0] * x.rank
        for k, axis in enumerate(axes):
            d = normal_axis(axis, x.rank)
            before[d], after[d] = pads[k], pads[len(axes) + k]
        value = node.value(2, "the padding").item() if node.has(2) else node.real("value", 0.0)
        return cls(tuple(before), tuple(after), mode, value), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if not x.rank == len(self.before) == len(self.after):
            raise self.misfit(inputs, f"pads are given for {len(self.before)} axes")
        shape = tuple(n + p + q for n, p, q in zip(x.shape, self.before, self.after, strict=True))
        if any(n < 0 for n in shape):
            raise self.misfit(inputs, "more is cut off than there is")
        for d, (p, q) in enumerate(zip(self.before, self.after, strict=True)):
            _, n = self._kept(d, x.shape)
            if self.mode != "constant" and n <= 0 and max(p, q) > 0:
                raise self.misfit(inputs, f"mode {self.mode} needs elements to repeat")
            if self.mode == "reflect" and max(p, q) >= n > 0:
                raise self.misfit(inputs, f"{max(p, q)} elements cannot be mirrored on an axis of {n}")
        return (TensorType(x.dtype, shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])

        def element(*i: Expr) -> Expr:
            inside: list[Expr] = []
            at: list[Expr] = []
            for d, (p, low, high) in enumerate(zip(i, self.before, self.after, strict=True)):
                place = p - low
                if self.mode == "constant":
                    inside += [const(0) <= place] * (low > 0) + [place < x.shape[d]] * (high > 0)
                elif low > 0 or high > 0:
                    first, n = self._kept(d, x.shape)
                    place = self._source(place - first, n) + first
                at.append(place)
            return select(logical_and(*inside), x[tuple(at)], const(self.value, x.dtype))

        return (b.compute(name, out.shape, element),)

    def _kept(self, d: int, shape: Sequence[int]) -> tuple[int, int]:
        """The first element on an axis that is not cut off, and how many are not."""
        first = max(0, -self.before[d])
        return first, shape[d] - first - max(0, -self.after[d])

    def _source(self, place: Expr, extent: int) -> Expr:
        """Where on an axis of `extent` the element of a place in its padding comes from."""
        match self.mode:
            case "edge":
                return minimum(maximum(place, 0), extent - 1)
            case "wrap":
                return place % extent
            case _:
                beyond = select(place < extent, place, as_index(2 * (extent - 1)) - place)
                return select(place < 0, const(0) - place, beyond)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = inputs[0]
        (out,) = self.infer([TensorType.of(x)])
        if self.mode == "constant":
            padded = np.full(out.shape, np.asarray(self.value).astype(x.dtype))
            kept = [self._kept(d, x.shape) for d in range(x.ndim)]
            if all(n > 0 for _, n in kept):
                to = (slice(max(0, p), max(0, p) + n) for p, (_, n) in zip(self.before, kept, strict=True))
                padded[tuple(to)] = x[tuple(slice(first, first + n) for first, n in kept)]
            return (padded,)
        places: list[Array] = []
        for d, p in enumerate(self.before):
            first, n = self._kept(d, x.shape)
            i: Array = np.arange(out.shape[d]) - max(0, p)
            match self.mode:
                case "edge":
                    i = np.clip(i, 0, n - 1)
                case "wrap":
                    i = i % max(n, 1)
                case _:
                    i = n - 1 - abs(n - 1 - abs(i))
            places.append(first + i)
        return (x[np.ix_(*places)],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 3, 4)

        def ints(*values: int) -> Array:
            return np.array(values, np.int64)

        yield cls.sample(x, ints(1, 0, 2, 3), np.array(1.5, np.float32))
        yield cls.sample(x, ints(0, 1, 0, 0))
        yield cls.sample(x, ints(2, 1), None, ints(-1))
        yield cls.sample(x, ints(-1, 1, 2, -2))
        yield cls.sample(x, opset=9, pads=[0, 1, 1, 0], value=-2.0)
        for mode in ("edge", "reflect"):
            yield cls.sample(x, ints(2, 1, 1, 3), mode=mode)
            yield cls.sample(x, ints(-1, 0, 1, -1), mode=mode)
        yield cls.sample(x, ints(2, 1, 1, 3), mode="wrap", opset=19)
        yield cls.sample(x, ints(-1, 9, 4, -2), mode="wrap", opset=19)
        yield cls.sample(x, ints(0, -1, 0, 2), mode="reflect")
        yield cls.sample(np.array([True, False]), ints(1, 2), np.array(True), opset=13)
        yield Sample(cls((-5, 0), (9, 0)), (x,))
        yield cls.sample(x.astype(np.int32), ints(1, 1, 1, 1), np.array(-7, np.int32))


@dataclass(frozen=True, slots=True)
class Tile(Op):
    """Every axis repeated."""

    onnx = ("Tile",)
    kind = Kind.MOVEMENT
    moves_only = True
    repeats: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(node.value_integers(1, "repeats")), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if len(self.repeats) != x.rank or any(r < 0 for r in self.repeats):
            raise self.misfit(inputs, f"cannot be repeated {list(self.repeats)} times")
        return (TensorType(x.dtype, tuple(n * r for n, r in zip(x.shape, self.repeats, strict=True))),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        (out,) = self.infer([TensorType(x.dtype, x.shape)])

        def element(*i: Expr) -> Expr:
            return x[tuple(p if r == 1 else p % n for p, n, r in zip(i, x.shape, self.repeats, strict=True))]

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.tile(inputs[0], self.repeats),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 1, 3), np.array([2, 3, 1], np.int64))


@dataclass(frozen=True, slots=True)
class Trilu(Op):
    """The upper or lower triangle of matrices, from diagonal `k` on; zeros elsewhere."""

    onnx = ("Trilu",)
    kind = Kind.MOVEMENT
    moves_only = True
    upper: bool = True
    k: int = 0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        k = int(node.value(1, "the diagonal").item()) if node.has(1) else 0
        return cls(bool(node.integer("upper", 1)), k), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        if inputs[0].rank < 2:
            raise self.misfit(inputs, "is not a matrix")
        return (inputs[0],)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs

        def element(*i: Expr) -> Expr:
            row, column = i[-2], i[-1]
            inside = row + self.k <= column if self.upper else column <= row + self.k
            return select(inside, x[i], const(0, x.dtype))

        return (b.compute(name, x.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (np.triu(x, self.k) if self.upper else np.tril(x, self.k),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        for upper in (0, 1):
            yield cls.sample(x, upper=upper)
            yield cls.sample(x, np.array(1, np.int64), upper=upper)
            yield cls.sample(x.astype(np.int64), np.array(-1, np.int64), upper=upper)
