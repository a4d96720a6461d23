"""Bitwise logic and shifts of integers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    BinaryOp,
    Expr,
    binary,
    const,
    maximum,
    minimum,
    select,
)
from tilewright.ops.axes import INTEGERS
from tilewright.ops.core.elementwise import PairFunction, Pairwise, Pointwise
from tilewright.ops.opdef import OnnxNode, Sample
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

_TRIED = (DType.I8, DType.U8, DType.I64, DType.U64)


def _patterns(dtype: DType) -> Array:
    """Numbers of a type that differ in every bit from one another somewhere."""
    info = np.iinfo(dtype.numpy)
    return np.array([0, 1, 5, 12, 0x5A, info.max, info.min, info.max // 3], dtype.numpy)


class Bitwise(PairFunction):
    __slots__ = ()
    takes = INTEGERS

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for dtype in _TRIED:
            x = _patterns(dtype)
            yield cls.sample(x[:, None], x)


@dataclass(frozen=True, slots=True)
class BitwiseAnd(Bitwise):
    onnx = ("BitwiseAnd",)
    op = BinaryOp.AND
    function = np.bitwise_and


@dataclass(frozen=True, slots=True)
class BitwiseOr(Bitwise):
    onnx = ("BitwiseOr",)
    op = BinaryOp.OR
    function = np.bitwise_or


@dataclass(frozen=True, slots=True)
class BitwiseXor(Bitwise):
    onnx = ("BitwiseXor",)
    op = BinaryOp.XOR
    function = np.bitwise_xor


@dataclass(frozen=True, slots=True)
class BitwiseNot(Pointwise):
    onnx = ("BitwiseNot",)
    takes = INTEGERS

    def scalar(self, x: Expr) -> Expr:
        return binary(BinaryOp.XOR, x, const(-1, x.dtype))

    def array(self, x: Array) -> Array:
        return ~x

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for dtype in _TRIED:
            yield cls.sample(_patterns(dtype))


@dataclass(frozen=True, slots=True)
class BitShift(Pairwise):
    """Bits that are shifted out are lost. From the left come zeros, and copies of the sign of a signed number. A shift
    by the width or more, or by less than nothing, leaves only those.
    """

    onnx = ("BitShift",)
    takes = INTEGERS
    left: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        direction = node.text("direction", "")
        if direction not in ("LEFT", "RIGHT"):
            raise UserError(f"BitShift: direction='{direction}' is neither 'LEFT' nor 'RIGHT'")
        return cls(direction == "LEFT"), node.present

    def scalar(self, a: Expr, b: Expr) -> Expr:
        op, last = BinaryOp.SHL if self.left else BinaryOp.SHR, a.dtype.bits - 1
        within = logical_and(b >= 0, b <= last)
        signs = (
            const(0, a.dtype) if self.left or not a.dtype.is_signed else binary(op, a, const(last, a.dtype))
        )
        return select(within, binary(op, a, minimum(maximum(b, 0), last)), signs)

    def array(self, a: Array, b: Array) -> Array:
        return np.left_shift(a, b) if self.left else np.right_shift(a, b)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        for direction in ("LEFT", "RIGHT"):
            for dtype in _TRIED:
                by = np.array([0, 1, dtype.bits - 1], dtype.numpy)
                x = _patterns(dtype)[:, None]
                if dtype.is_signed:  # since opset 28, which onnxruntime does not have
                    yield Sample(cls(direction == "LEFT"), (x, by))
                else:
                    yield cls.sample(x, by, direction=direction)
            # Before opset 28 this was left open, as C does.
            for far in (np.array([8, 9, 255], np.uint8), np.array([-1, 8, 127], np.int8)):
                yield Sample(cls(direction == "LEFT"), (far[:, None], far))
