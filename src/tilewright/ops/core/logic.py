"""Elementwise comparison, logic and choice."""

import operator
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, Expr, UnaryOp, binary, const, equal, select, unary
from tilewright.ops.axes import ANY, BOOLS, FLOATS, NUMBERS
from tilewright.ops.core.elementwise import (
    SPECIAL,
    Elementwise,
    PairFunction,
    PairOperator,
    Pointwise,
    normal,
)
from tilewright.ops.opdef import OnnxNode, Sample, TensorType
from tilewright.support.arrays import Array


class Comparison(PairOperator):
    """Yields bool. Nothing is less than, equal to or greater than NaN."""

    __slots__ = ()

    def result(self, inputs: Sequence[TensorType]) -> DType:
        Elementwise.result(self, inputs)
        return DType.BOOL


@dataclass(frozen=True, slots=True)
class Equal(Comparison):
    onnx = ("Equal",)
    moves_only = True
    takes = ANY
    function = operator.eq

    def scalar(self, a: Expr, b: Expr) -> Expr:
        return equal(a, b)  # == compares the expressions


@dataclass(frozen=True, slots=True)
class Less(Comparison):
    onnx = ("Less",)
    takes = NUMBERS
    function = operator.lt


@dataclass(frozen=True, slots=True)
class LessOrEqual(Comparison):
    onnx = ("LessOrEqual",)
    takes = NUMBERS
    function = operator.le


@dataclass(frozen=True, slots=True)
class Greater(Comparison):
    onnx = ("Greater",)
    takes = NUMBERS
    function = operator.gt


@dataclass(frozen=True, slots=True)
class GreaterOrEqual(Comparison):
    onnx = ("GreaterOrEqual",)
    takes = NUMBERS
    function = operator.ge


@dataclass(frozen=True, slots=True)
class And(PairFunction):
    onnx = ("And",)
    takes = BOOLS
    op = BinaryOp.AND
    function = np.bitwise_and


@dataclass(frozen=True, slots=True)
class Or(PairFunction):
    onnx = ("Or",)
    takes = BOOLS
    op = BinaryOp.OR
    function = np.bitwise_or


@dataclass(frozen=True, slots=True)
class Xor(PairFunction):
    onnx = ("Xor",)
    takes = BOOLS
    op = BinaryOp.XOR
    function = np.bitwise_xor


@dataclass(frozen=True, slots=True)
class Not(Pointwise):
    onnx = ("Not",)
    takes = BOOLS

    def scalar(self, x: Expr) -> Expr:
        return unary(UnaryOp.NOT, x)

    def array(self, x: Array) -> Array:
        return ~x

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        yield cls.sample(np.array([True, False]))


class Test(Pointwise):
    """A property of a float, as bool."""

    __slots__ = ()
    takes = FLOATS

    @abstractmethod
    def scalar(self, x: Expr) -> Expr: ...

    def result(self, inputs: Sequence[TensorType]) -> DType:
        Elementwise.result(self, inputs)
        return DType.BOOL


@dataclass(frozen=True, slots=True)
class IsNaN(Test):
    onnx = ("IsNaN",)

    def scalar(self, x: Expr) -> Expr:
        return binary(BinaryOp.NE, x, x)

    def array(self, x: Array) -> Array:
        return np.isnan(x)


@dataclass(frozen=True, slots=True)
class IsInf(Test):
    onnx = ("IsInf",)
    negative: bool = True
    positive: bool = True

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[int, ...]]:
        return cls(bool(node.integer("detect_negative", 1)), bool(node.integer("detect_positive", 1))), (0,)

    def scalar(self, x: Expr) -> Expr:
        found: Expr = const(False, DType.BOOL)
        for wanted, infinity in ((self.negative, float("-inf")), (self.positive, float("inf"))):
            if wanted:
                found = binary(BinaryOp.OR, found, equal(x, infinity))
        return found

    def array(self, x: Array) -> Array:
        return (np.isneginf(x) & self.negative) | (np.isposinf(x) & self.positive)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        x = np.array(SPECIAL, np.float32)
        yield cls.sample(x)
        yield cls.sample(x, detect_negative=0)
        yield cls.sample(x, detect_positive=0)


@dataclass(frozen=True, slots=True)
class Where(Elementwise):
    """The second input where the first holds, else the third."""

    onnx = ("Where",)
    moves_only = True
    arity = (3, None)
    widens = False

    def result(self, inputs: Sequence[TensorType]) -> DType:
        if inputs[0].dtype is not DType.BOOL:
            raise self.misfit(inputs, "the condition must be bool")
        if inputs[1].dtype is not inputs[2].dtype:
            raise self.misfit(inputs, "the two choices must have one element type")
        return inputs[1].dtype

    def value(self, args: Sequence[Expr]) -> Expr:
        return select(*args)

    def values(self, args: Sequence[Array]) -> Array:
        return np.where(*args)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[Sample]:
        cond = np.array([[True, False, True], [False, False, True]])
        yield cls.sample(cond, normal(rng, 2, 3), normal(rng, 3))
        yield cls.sample(cond, np.array(np.nan, np.float32), normal(rng, 2, 1, 1))
        yield cls.sample(cond[0], np.array([1, 2, 3], np.int64), np.array(9, np.int64))
