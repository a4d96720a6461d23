"""Sequences of tensors. The host holds one as a list, which is never changed once it is made."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import normal_axis
from tilewright.ops.hostop import HostOp, HostSample, HostValue, Subgraph, sequence, tensor
from tilewright.ops.opdef import ONNX_NUMBERS, OnnxNode
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_WHY = "sequences are held by the host"


@dataclass(frozen=True, slots=True)
class SequenceConstruct(HostOp):
    """A sequence of the inputs."""

    onnx = ("SequenceConstruct",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return ([tensor(v, "an input") for v in inputs],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("SequenceConstruct", tuple(_pieces()))
        yield HostSample("SequenceConstruct", (np.array(["a", "b"], object),))


@dataclass(frozen=True, slots=True)
class SequenceEmpty(HostOp):
    """A sequence without elements. Their type matters to nobody: whatever is inserted first has one."""

    onnx = ("SequenceEmpty",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return ([],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("SequenceEmpty", ())
        yield HostSample("SequenceEmpty", (), {"dtype": ONNX_NUMBERS[DType.I64]})


@dataclass(frozen=True, slots=True)
class SequenceAt(HostOp):
    onnx = ("SequenceAt",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        items = sequence(inputs[0], "input 0")
        return (items[_position(inputs[1], len(items), len(items) - 1)],)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        for at in (0, 2, -1, -3):
            yield HostSample("SequenceAt", (_pieces(), np.array(at)))
        yield HostSample("SequenceAt", (_pieces(), np.array(1, np.int32)))


@dataclass(frozen=True, slots=True)
class SequenceInsert(HostOp):
    """The sequence with one element more: before the one at a position, or at the end."""

    onnx = ("SequenceInsert",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        items = list(sequence(inputs[0], "input 0"))
        piece = tensor(inputs[1], "input 1")
        at = _position(inputs[2], len(items), len(items)) if _has(inputs, 2) else len(items)
        items.insert(at, piece)
        return (items,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        piece = np.full((2, 2), 7, np.float32)
        yield HostSample("SequenceInsert", (_pieces(), piece))
        for at in (0, 3, -1, -3):
            yield HostSample("SequenceInsert", (_pieces(), piece, np.array(at)))


@dataclass(frozen=True, slots=True)
class SequenceErase(HostOp):
    """The sequence without the element at a position, or without its last."""

    onnx = ("SequenceErase",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        items = list(sequence(inputs[0], "input 0"))
        at = _position(inputs[1], len(items), len(items) - 1) if _has(inputs, 1) else len(items) - 1
        if not items:
            raise UserError("nothing can be erased from an empty sequence")
        del items[at]
        return (items,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("SequenceErase", (_pieces(),))
        for at in (0, -2):
            yield HostSample("SequenceErase", (_pieces(), np.array(at)))


@dataclass(frozen=True, slots=True)
class SequenceLength(HostOp):
    onnx = ("SequenceLength",)
    why = _WHY
    moves_only = True

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        return (np.array(len(sequence(inputs[0], "input 0")), np.int64),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        yield HostSample("SequenceLength", (_pieces(),))
        yield HostSample("SequenceLength", ([],))


@dataclass(frozen=True, slots=True)
class SplitToSequence(HostOp):
    """Slices along an axis: of the sizes given, all of one size (but the last may be smaller), or single ones, whose
    axis is dropped unless `keep`.
    """

    onnx = ("SplitToSequence",)
    why = _WHY
    moves_only = True
    axis: int
    keep: bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("axis", 0), bool(node.integer("keepdims", 1)))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        x = tensor(inputs[0], "input 0")
        axis = normal_axis(self.axis, x.ndim)
        extent = x.shape[axis]
        if not _has(inputs, 1):
            if not self.keep:
                return ([np.take(x, i, axis) for i in range(extent)],)
            return (_cut(x, range(1, extent), axis),)
        sizes = tensor(inputs[1], "the sizes")
        if sizes.ndim == 0:
            size = int(sizes)
            if size < 1:
                raise UserError(f"slices of {size} elements")
            return (_cut(x, range(size, extent, size), axis),)
        if sizes.ndim != 1 or (sizes < 0).any() or int(sizes.sum()) != extent:
            raise UserError(f"slices of {sizes.tolist()} elements, along an axis of {extent}")
        return (_cut(x, np.cumsum(sizes)[:-1].tolist(), axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        x = rng.standard_normal((3, 5)).astype(np.float32)
        for axis, keep in ((0, 1), (1, 0), (-1, 1), (-2, 0)):
            yield HostSample("SplitToSequence", (x,), {"axis": axis, "keepdims": keep})
        for split in (np.array(2), np.array([1, 4]), np.array(9), np.array([5], np.int32)):
            yield HostSample("SplitToSequence", (x, split), {"axis": 1, "keepdims": 0})


@dataclass(frozen=True, slots=True)
class ConcatFromSequence(HostOp):
    """The elements one after the other along an axis, which may be a new one."""

    onnx = ("ConcatFromSequence",)
    why = _WHY
    moves_only = True
    axis: int
    is_new: bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Self:
        return cls(node.integer("axis", 0), bool(node.integer("new_axis", 0)))

    def run(self, inputs: Sequence[HostValue], bodies: Mapping[str, Subgraph]) -> tuple[HostValue, ...]:
        items = [tensor(v, "an element") for v in sequence(inputs[0], "input 0")]
        if not items:
            raise UserError("an empty sequence cannot be joined to a tensor")
        if len({v.dtype for v in items}) > 1:
            raise UserError("the elements of the sequence have different types")
        axis = normal_axis(self.axis, items[0].ndim + self.is_new)
        return (np.stack(items, axis) if self.is_new else np.concatenate(items, axis),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        different: list[Any] = [np.full((n, 2), n, np.float32) for n in (1, 3)]
        yield HostSample("ConcatFromSequence", (different,), {"axis": 0})
        yield HostSample("ConcatFromSequence", (different,), {"axis": -2})
        for axis in (0, 1, 2, -1, -3):
            yield HostSample("ConcatFromSequence", (_pieces(),), {"axis": axis, "new_axis": 1})


def _has(inputs: Sequence[HostValue], i: int) -> bool:
    return i < len(inputs) and inputs[i] is not None


def _position(value: HostValue, length: int, last: int) -> int:
    """A position in a sequence, counted from the front; negative ones count from the back."""
    at = int(tensor(value, "the position").item())
    if not -length <= at <= last:
        raise UserError(f"there is no position {at} in a sequence of {length} elements")
    return at + length if at < 0 else at


def _cut(x: Array, at: Sequence[int], axis: int) -> list[Any]:
    return [np.ascontiguousarray(piece) for piece in np.split(x, list(at), axis)]


def _pieces() -> list[Any]:
    return [np.full((2, 2), n, np.float32) for n in range(3)]
