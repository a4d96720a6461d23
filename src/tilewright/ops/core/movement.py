"""Movement of whole tensors: the same elements, in another shape or order.

Each op is one block. Shapes are static, so what ONNX computes from shapes at run time (a `-1` in Reshape) is resolved
by `from_onnx`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.expr import Buffer, Expr, const
from tilewright.ops.axes import load_broadcast, normal_axes, normal_axis, try_broadcast
from tilewright.ops.core.elementwise import normal
from tilewright.ops.opdef import Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import capacity
from tilewright.tir.build import FuncBuilder


@dataclass(frozen=True, slots=True)
class Identity(Op):
    """Each element as it is."""

    onnx = ("Identity",)
    kind = Kind.MOVEMENT
    moves_only = True

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


@dataclass(frozen=True, slots=True)
class Transpose(Op):
    """Axis d of the output is axis `perm[d]` of the input."""

    onnx = ("Transpose",)
    kind = Kind.MOVEMENT
    moves_only = True
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
    moves_only = True
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
    if shape.count(-1) > 1 or any(n < -1 for n in shape) or (-1 in shape and (rest == 0 or size % rest)):
        raise UserError(f"Reshape of {x} to {list(wanted)}: the shape does not fit")
    return tuple(size // rest if n == -1 else n for n in shape)


def reshape_index(source: Sequence[int], shape: Sequence[int], index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where the element at `index` of `shape` lies in `source`.

    Both shapes are cut into the shortest runs of axes with equal products, and only inside a run indices are joined
    and taken apart again: an axis that a reshape leaves alone keeps its iterator.
    """
    if 0 in shape:  # nothing is ever read
        return (const(0),) * len(source)
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
            if (capacity(p) < capacity(q) and i < len(a)) or j >= len(b):
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
    moves_only = True
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
