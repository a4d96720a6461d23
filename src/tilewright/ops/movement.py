"""Movement: ops whose output elements are input elements at other places.

Each is one block. Shapes are static, so what ONNX computes from shapes at run time (a `-1` in Reshape, negative
starts of Slice) is resolved by `from_onnx`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, const, select
from tilewright.ops.axes import load_broadcast, normal_axes, normal_axis, try_broadcast
from tilewright.ops.elementwise import normal
from tilewright.ops.opdef import Array, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Identity(Op):
    """Dropout too: at inference it does nothing."""

    onnx = ("Identity", "Dropout")
    kind = Kind.MOVEMENT

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        node.one_output("mask")
        if node.op_type == "Dropout" and node.has(2) and node.value(2, "the training mode").any():
            raise UserError("Dropout in training mode", hint="export the model for inference")
        return cls(), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        return (inputs[0],)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        return (b.compute(name, x.shape, lambda *i: x[i]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 3))
        yield cls.sample(np.asarray(True))
        yield cls.sample(
            normal(rng, 4), np.array(0.5, np.float32), np.asarray(False), op_type="Dropout", opset=13
        )


@dataclass(frozen=True, slots=True)
class Transpose(Op):
    """Axis d of the output is axis `perm[d]` of the input."""

    onnx = ("Transpose",)
    kind = Kind.MOVEMENT
    perm: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        perm = node.integers("perm")
        return cls(tuple(reversed(range(node.input(0).rank))) if perm is None else perm), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if sorted(self.perm) != list(range(x.rank)):
            raise self.misfit(inputs, f"{list(self.perm)} is not a permutation of its axes")
        return (TensorType(x.dtype, tuple(x.shape[p] for p in self.perm)),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        inverse = sorted(range(len(self.perm)), key=self.perm.__getitem__)
        shape = [x.shape[p] for p in self.perm]
        return (b.compute(name, shape, lambda *i: x[tuple(i[d] for d in inverse)]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].transpose(self.perm),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 3, 4))
        yield cls.sample(normal(rng, 2, 3, 4, 5), perm=[0, 2, 3, 1])
        yield cls.sample(normal(rng))


@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements in row-major order. Flatten, Squeeze and Unsqueeze are reshapes whose shape follows from the
    input's."""

    onnx = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
    kind = Kind.MOVEMENT
    shape: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        match node.op_type:
            case "Flatten":
                axis = node.integer("axis", 1)
                axis = axis if axis == x.rank else normal_axis(axis, x.rank)
                return cls((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), (0,)
            case "Squeeze":
                given = node.given_integers(1, "axes")
                axes = (
                    [d for d, n in enumerate(x.shape) if n == 1]
                    if given is None
                    else normal_axes(given, x.rank)
                )
                if any(x.shape[a] != 1 for a in axes):
                    raise UserError(f"Squeeze of {x}: an axis of {list(axes)} has an extent other than 1")
                return cls(tuple(n for d, n in enumerate(x.shape) if d not in axes)), (0,)
            case "Unsqueeze":
                given = node.given_integers(1, "axes")
                if given is None:
                    raise UserError("Unsqueeze has no axes")
                axes = normal_axes(given, x.rank + len(given))
                kept = iter(x.shape)
                return cls(tuple(1 if d in axes else next(kept) for d in range(x.rank + len(axes)))), (0,)
            case _:
                wanted = node.given_integers(1, "shape")
                if wanted is None:
                    raise UserError("Reshape has no shape")
                return cls(_resolve_shape(x, wanted, bool(node.integer("allowzero", 0)))), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if math.prod(x.shape) != math.prod(self.shape):
            have, want = math.prod(x.shape), math.prod(self.shape)
            raise self.misfit(inputs, f"has {have} elements, but {list(self.shape)} has {want}")
        return (TensorType(x.dtype, self.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        return (b.compute(name, self.shape, lambda *i: x[reshape_index(x.shape, self.shape, i)]),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].reshape(self.shape),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 2, 3, 4)
        for shape in ((6, 4), (2, 12), (4, 3, 2), (24,), (2, 1, 3, 4), (0, -1), (3, 2, 2, 2)):
            yield cls.sample(x, np.array(shape, np.int64))
        yield cls.sample(normal(rng, 1, 1), np.array([], np.int64))
        yield cls.sample(x, op_type="Flatten")
        yield cls.sample(x, op_type="Flatten", axis=0)
        yield cls.sample(normal(rng, 1, 3, 1), op_type="Squeeze")
        yield cls.sample(normal(rng, 1, 3, 1), np.array([-1], np.int64), op_type="Squeeze")
        yield cls.sample(normal(rng, 1, 3, 1), op_type="Squeeze", opset=11, axes=[0])
        yield cls.sample(x, np.array([0, -1], np.int64), op_type="Unsqueeze")
        yield cls.sample(x, op_type="Unsqueeze", opset=11, axes=[1])


def _resolve_shape(x: TensorType, wanted: tuple[int, ...], allow_zero: bool) -> tuple[int, ...]:
    """ONNX's conventions: 0 copies the input's extent, -1 takes what is left."""
    if not allow_zero and any(n == 0 and d >= x.rank for d, n in enumerate(wanted)):
        raise UserError(
            f"Reshape of {x} to {list(wanted)}: a 0 stands for an axis that the input does not have"
        )
    shape = [x.shape[d] if n == 0 and not allow_zero else n for d, n in enumerate(wanted)]
    rest = math.prod(n for n in shape if n != -1)
    size = math.prod(x.shape)
    if shape.count(-1) > 1 or min(shape, default=0) < -1 or (-1 in shape and (rest == 0 or size % rest)):
        raise UserError(f"Reshape of {x} to {list(wanted)}: the shape does not fit")
    return tuple(size // rest if n == -1 else n for n in shape)


def reshape_index(source: Sequence[int], shape: Sequence[int], index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where the element at `index` of `shape` lies in `source`.

    Both shapes are cut into the shortest runs of axes with equal products, and only inside a run indices are joined
    and taken apart again: an axis that a reshape leaves alone keeps its iterator.
    """
    out: list[Expr] = []
    for old, new in _matching_runs(source, shape):
        if len(old) == 1 and len(new) == 1:
            out.append(index[new[0]])
            continue
        linear: Expr = const(0)
        for d in new:
            linear = linear * shape[d] + (index[d] if shape[d] != 1 else const(0))
        parts: list[Expr] = []
        significant = [d for d in old if source[d] != 1]
        for d in reversed(old):
            if source[d] == 1:
                parts.append(const(0))
            elif d == significant[0]:
                parts.append(linear)
            else:
                parts.append(linear % source[d])
                linear = linear // source[d]
        out.extend(reversed(parts))
    return tuple(out)


def _matching_runs(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Cut two shapes of equal size into runs of axes of equal size, as short as possible."""
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [i] if i < len(a) else [], [j] if j < len(b) else []
        i, j = i + len(left), j + len(right)
        p, q = math.prod(a[d] for d in left), math.prod(b[d] for d in right)
        while p != q:
            if (p < q and i < len(a)) or j >= len(b):
                left.append(i)
                p, i = p * a[i], i + 1
            else:
                right.append(j)
                q, j = q * b[j], j + 1
        yield left, right


@dataclass(frozen=True, slots=True)
class Expand(Op):
    """Broadcasting to `shape`."""

    onnx = ("Expand",)
    kind = Kind.MOVEMENT
    shape: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x, wanted = node.input(0), node.value_integers(1, "the shape")
        shape = try_broadcast([x.shape, wanted])
        if shape is None:
            raise UserError(f"Expand of {x} to {list(wanted)}: the shapes do not broadcast")
        return cls(shape), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,) = inputs
        if try_broadcast([x.shape, self.shape]) != self.shape:
            raise self.misfit(inputs, f"does not broadcast to {list(self.shape)}")
        return (TensorType(x.dtype, self.shape),)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        (x,) = inputs
        return (b.compute(name, self.shape, lambda *i: load_broadcast(x, i, self.shape)),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.broadcast_to(inputs[0], self.shape).copy(),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 3, 1), np.array([2, 1, 4], np.int64))
        yield cls.sample(normal(rng), np.array([2], np.int64))


@dataclass(frozen=True, slots=True)
class Concat(Op):
    onnx = ("Concat",)
    kind = Kind.MOVEMENT
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

            def part(k: int) -> Expr:
                here = at - (ends[k] - parts[k].shape[self.axis])
                value = parts[k][(*i[: self.axis], here, *i[self.axis + 1 :])]
                return value if k == len(parts) - 1 else select(at < ends[k], value, part(k + 1))

            return part(0)

        return (b.compute(name, out.shape, element),)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(list(inputs), self.axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(normal(rng, 2, 3), normal(rng, 2, 1), normal(rng, 2, 2), axis=-1)
        yield cls.sample(normal(rng, 1, 2), normal(rng, 3, 2), axis=0)
        yield cls.sample(normal(rng, 2, 2), axis=1)
        yield cls.sample(normal(rng, 2, 2), normal(rng, 2, 0), axis=1)


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Consecutive pieces of `sizes` along an axis, one output each."""

    onnx = ("Split",)
    kind = Kind.MOVEMENT
    axis: int
    sizes: tuple[int, ...]

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        x = node.input(0)
        axis = normal_axis(node.integer("axis", 0), x.rank)
        sizes = node.given_integers(1, "split")
        if sizes is None:
            count = node.integer("num_outputs", node.outputs)
            each = -(-x.shape[axis] // count)
            sizes = (*(each,) * (count - 1), x.shape[axis] - (count - 1) * each)
            if sizes[-1] < 0 or (node.opset < 18 and sizes[-1] != each):
                raise UserError(f"Split of {x}: axis {axis} does not divide into {count} parts")
        return cls(axis, sizes), (0,)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 1)
        (x,), a = inputs, self.axis
        if not a < x.rank or sum(self.sizes) != x.shape[a] or min(self.sizes) < 0:
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
