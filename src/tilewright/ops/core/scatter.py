"""Scatter: a copy of a tensor in which elements that indices choose are replaced by updates, or combined with them.

The copy is a block, and so is the loop over the updates, which runs in their order: of updates to one element the
last one wins. Indices are brought into range as Gather's are, so a wrong one changes the nearest element, never memory
that is not ours.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Buffer, Expr, Indices, binary
from tilewright.ops.axes import normal_axis
from tilewright.ops.core.elementwise import normal
from tilewright.ops.core.gather import INDEX_TYPES, checked_index, checked_indices
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, tensor
from tilewright.ops.opdef import IndexInput, Kind, OnnxNode, Op, Sample, TensorType
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.tir.build import FuncBuilder
from tilewright.tir.stmt import Store

_COMBINE = {"add": BinaryOp.ADD, "mul": BinaryOp.MUL, "max": BinaryOp.MAX, "min": BinaryOp.MIN}
_COMBINE_BOOLS = {"add": BinaryOp.OR, "mul": BinaryOp.AND, "max": BinaryOp.OR, "min": BinaryOp.AND}
_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def combined(reduction: str, old: Expr, new: Expr) -> Expr:
    """An element after an update."""
    if reduction == "none":
        return new
    return binary((_COMBINE_BOOLS if old.dtype is DType.BOOL else _COMBINE)[reduction], old, new)


def put(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """A copy of `x` that is updated at `places`, in the order of memory."""
    out = x.copy()
    if reduction == "none":
        shape = np.broadcast_shapes(*(p.shape for p in places))
        out[tuple(np.ascontiguousarray(np.broadcast_to(p, shape)) for p in places)] = updates
    else:
        with np.errstate(all="ignore"):
            _UFUNCS[reduction].at(out, places, updates)
    return out


def element_places(at: Array, shape: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Where the elements of ScatterElements' updates go: one array for each axis."""
    places: list[Array] = list(np.indices(at.shape, sparse=True))
    places[axis] = checked_indices(at, shape[axis])
    return tuple(places)


def slice_places(at: Array, shape: Sequence[int]) -> tuple[Array, ...]:
    """Where the slices of ScatterND's updates go: one array for each of the first axes."""
    return tuple(checked_indices(at[..., d], shape[d]) for d in range(at.shape[-1]))


def _reduction(node: OnnxNode) -> str:
    found = node.text("reduction", "none")
    if found != "none" and found not in _COMBINE:
        raise UserError(f"{node.op_type}: unknown reduction '{found}'")
    return found


class Scatter(Op):
    """Inputs are the tensor, indices and updates."""

    __slots__ = ()
    kind = Kind.REDUCTION
    reduction: str

    @abstractmethod
    def misfit_of(self, x: TensorType, at: TensorType, updates: TensorType) -> str:
        """Why the shapes do not fit; empty if they do."""

    @abstractmethod
    def ordered(self, at: tuple[int, ...], updates: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of the updates along which several may go to one element."""

    @abstractmethod
    def place(self, at: Buffer, shape: tuple[int, ...], i: Sequence[Expr]) -> Indices:
        """Where the update at `i` goes."""

    @abstractmethod
    def places(self, at: Array, shape: Sequence[int]) -> tuple[Array, ...]: ...

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.check_arity(inputs, 3)
        x, at, updates = inputs
        if at.dtype not in INDEX_TYPES:
            raise self.misfit(inputs, "indices must be i32 or i64")
        if updates.dtype is not x.dtype:
            raise self.misfit(inputs, "updates must have the type of the tensor")
        reason = self.misfit_of(x, at, updates)
        if reason:
            raise self.misfit(inputs, reason)
        if 0 in x.shape and 0 not in updates.shape:
            raise self.misfit(inputs, "there are updates, but no elements")
        return (x,)

    def compute(self, b: FuncBuilder, inputs: Sequence[Buffer], name: str) -> tuple[Buffer, ...]:
        x, at, updates = inputs
        if 0 in updates.shape:
            return (b.compute(name, x.shape, lambda *i: x[i]),)
        out = b.ahead(name, x.shape, x.dtype)
        b.compute(f"{name}_copy", x.shape, lambda *i: x[i], out=out)

        def body(*i: Expr) -> Store:
            where = self.place(at, x.shape, i)
            return Store(out, where, combined(self.reduction, out[where], updates[i]))

        b.update(name, updates.shape, self.ordered(at.shape, updates.shape), body)
        return (out,)

    def reference(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, at, updates = inputs
        return (put(x, self.places(at, x.shape), updates, self.reduction),)


@dataclass(frozen=True, slots=True)
class ScatterElements(Scatter):
    """Each update replaces the element at its own place, but for `axis`, where the index says."""

    onnx = ("ScatterElements", "Scatter")
    axis: int
    reduction: str = "none"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(normal_axis(node.integer("axis", 0), node.input(0).rank), _reduction(node)), (0, 1, 2)

    def misfit_of(self, x: TensorType, at: TensorType, updates: TensorType) -> str:
        if not x.rank == at.rank > self.axis:
            return f"indices must have the axes of the tensor, and one that is {self.axis}"
        if at.shape != updates.shape:
            return "indices and updates differ in shape"
        beyond = any(n > m for d, (n, m) in enumerate(zip(at.shape, x.shape, strict=True)) if d != self.axis)
        return "there are more updates than elements on an axis" if beyond else ""

    def ordered(self, at: tuple[int, ...], updates: tuple[int, ...]) -> tuple[int, ...]:
        return (self.axis,)

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        return (IndexInput(1, (inputs[0].shape[self.axis],)),)

    def place(self, at: Buffer, shape: tuple[int, ...], i: Sequence[Expr]) -> Indices:
        there = checked_index(at[tuple(i)], shape[self.axis])
        return (*i[: self.axis], there, *i[self.axis + 1 :])

    def places(self, at: Array, shape: Sequence[int]) -> tuple[Array, ...]:
        return element_places(at, shape, self.axis)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x, updates = normal(rng, 4, 3), normal(rng, 2, 3)
        at = np.array([[1, 0, 2], [0, -1, 3]], np.int64)
        twice = np.array([[1, 0, 2], [1, -4, 2]], np.int32)
        yield cls.sample(x, at, updates)
        yield cls.sample(x, at, updates, op_type="Scatter", opset=9)
        yield cls.sample(x, twice, updates, opset=13)
        yield cls.sample(x, np.array([[1], [-1], [1]], np.int64), updates[:, :1].repeat(2, 0)[:3], axis=1)
        yield cls.sample(x, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.float32))
        for reduction in ("add", "mul", "max", "min"):
            yield cls.sample(x, twice, updates, reduction=reduction)
            whole = rng.integers(-9, 9, size=(2, 3)).astype(np.int64)
            yield cls.sample(x.astype(np.int64), twice, whole, reduction=reduction)
        row = np.array([0, 3, 0, 3, 3], np.int64)
        some = np.array([True, False, False, False, True])
        for reduction in ("none", "add", "mul", "max", "min"):
            yield Sample(cls(0, reduction), (np.array([True, False, True, True]), row, some))
            yield Sample(
                cls(0, reduction), (normal(rng, 4).astype(np.float16), row, normal(rng, 5).astype(np.float16))
            )


@dataclass(frozen=True, slots=True)
class ScatterND(Scatter):
    """The last axis of the indices holds places on the first axes of the tensor; updates are elements or slices."""

    onnx = ("ScatterND",)
    reduction: str = "none"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(_reduction(node)), (0, 1, 2)

    def misfit_of(self, x: TensorType, at: TensorType, updates: TensorType) -> str:
        depth = at.shape[-1] if at.rank else 0
        if not 1 <= depth <= x.rank:
            return f"indices choose places on {depth} axes"
        wanted = (*at.shape[:-1], *x.shape[depth:])
        return "" if updates.shape == wanted else f"updates must have the shape {list(wanted)}"

    def ordered(self, at: tuple[int, ...], updates: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(range(len(at) - 1))

    def indices(self, inputs: Sequence[TensorType]) -> Sequence[IndexInput]:
        x, at, _ = inputs
        return (IndexInput(1, x.shape[: at.shape[-1]]),)

    def place(self, at: Buffer, shape: tuple[int, ...], i: Sequence[Expr]) -> Indices:
        n = len(at.shape) - 1
        depth = at.shape[-1]
        return (*(checked_index(at[(*i[:n], d)], shape[d]) for d in range(depth)), *i[n:])

    def places(self, at: Array, shape: Sequence[int]) -> tuple[Array, ...]:
        return slice_places(at, shape)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = normal(rng, 4, 3, 2)
        slices = np.array([[1], [-1], [1]], np.int64)
        elements = np.array([[[0, 0, 1], [3, 2, 0]], [[0, 0, -1], [1, -1, 1]]], np.int64)
        yield cls.sample(x, slices[:2], normal(rng, 2, 3, 2), opset=13)
        yield cls.sample(x, elements, normal(rng, 2, 2))
        yield cls.sample(x, np.array([2], np.int64), normal(rng, 3, 2))
        yield cls.sample(x, np.array([[2, 1]], np.int64), normal(rng, 1, 2))
        yield Sample(cls(), (x, slices.astype(np.int32), normal(rng, 3, 3, 2)))
        for reduction in ("add", "mul", "max", "min"):
            yield cls.sample(x, slices, normal(rng, 3, 3, 2), reduction=reduction)
            whole = rng.integers(-9, 9, size=(2, 2)).astype(np.int32)
            yield cls.sample(x.astype(np.int32), elements, whole, reduction=reduction)


# ------------------------------------------------------------------------------------------- elements of other types

_WHY = "native code does not know the type of its elements"


@dataclass(frozen=True, slots=True)
class ScatterElementsOfAnyType(HostOp):
    onnx = ("ScatterElements", "Scatter")
    why = _WHY
    axis: int
    reduction: str = "none"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("axis", 0), _reduction(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, at, updates = (tensor(v, f"input {i}") for i, v in enumerate(inputs))
        axis = normal_axis(self.axis, x.ndim)
        _check_places(at, x.shape[axis])
        return (put(x, element_places(at, x.shape, axis), updates, self.reduction),)

    def indices(self, inputs: Sequence[HostValue]) -> Sequence[IndexInput]:
        x = tensor(inputs[0], "input 0")
        return (IndexInput(1, (x.shape[normal_axis(self.axis, x.ndim)],)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x, updates = np.array([["a", "b"], ["c", "d"]], object), np.array([["e", "f"]], object)
        at = np.array([[1, -2]], np.int64)
        yield HostSample("ScatterElements", (x, at, updates), {"axis": 0})
        yield HostSample("Scatter", (x, at, updates), {"axis": 1}, opset=9)


@dataclass(frozen=True, slots=True)
class ScatterNDOfAnyType(HostOp):
    onnx = ("ScatterND",)
    why = _WHY
    reduction: str = "none"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(_reduction(node))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x, at, updates = (tensor(v, f"input {i}") for i, v in enumerate(inputs))
        for d in range(at.shape[-1]):
            _check_places(at[..., d], x.shape[d])
        return (put(x, slice_places(at, x.shape), updates, self.reduction),)

    def indices(self, inputs: Sequence[HostValue]) -> Sequence[IndexInput]:
        x, at = (tensor(v, f"input {i}") for i, v in enumerate(inputs[:2]))
        return (IndexInput(1, x.shape[: at.shape[-1]]),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = np.array([["a", "b"], ["c", "d"]], object)
        yield HostSample("ScatterND", (x, np.array([[-1]], np.int64), np.array([["e", "f"]], object)))


def _check_places(at: Array, extent: int) -> None:
    if at.size and not extent:
        raise UserError("there are updates, but no elements")
