"""Integers of a graph that are computed from open dimensions: shapes, axes, bounds of slices.

Static values are worked out by running nodes in numpy (`graph/known.py`). What depends on an open dimension has no one
value; here it is followed as sizes (`support/sizes.py`), through the operators that models compute shapes with. Values
are small arrays of ints, open ones among them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.graph import Node, Value
from tilewright.ops.core.arithmetic import Add, Div, Max, Min, Mod, Mul, Sub
from tilewright.ops.core.cast import Cast
from tilewright.ops.core.constant import Sizes
from tilewright.ops.core.gather import Gather
from tilewright.ops.core.logic import Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Not, Where
from tilewright.ops.core.movement import Expand, Identity, Reshape, Transpose
from tilewright.ops.core.pieces import Concat, Slice
from tilewright.ops.core.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum
from tilewright.ops.opdef import Op
from tilewright.support.arrays import Array
from tilewright.support.sizes import SizeError, is_open

OpenArray: TypeAlias = NDArray[np.object_]  # of ints, some of them open, or bools
_MOST_ELEMENTS = 256  # of a shape, with room


def is_open_op(op: Op) -> bool:
    """Does one of its attributes depend on an open dimension?"""
    return _has_open(op)


def is_open_node(node: Node) -> bool:
    """Does its result depend on an open dimension, in shape or by its attributes?"""
    return any(is_open(v.shape) for v in node.outputs) or is_open_op(node.op)


def _has_open(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_open, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if is_dataclass(value):  # a window, the places of a resized axis
        return any(_has_open(getattr(value, f.name)) for f in fields(value))
    return isinstance(value, int) and is_open((value,))


class OpenValues:
    """What is known of values that depend on open dimensions. Nodes are added in graph order."""

    def __init__(self) -> None:
        self._known: dict[Value, OpenArray] = {}

    def get(self, value: Value) -> OpenArray | None:
        return self._known.get(value)

    def add(self, node: Node, constant: Callable[[Value], Array | None]) -> None:
        """Follow a node, whose other inputs may be constants."""
        is_new = isinstance(node.op, Sizes)
        if not is_new and not any(v in self._known for v in node.inputs):
            return
        if len(node.outputs) != 1 or is_open(node.outputs[0].shape) or node.outputs[0].size > _MOST_ELEMENTS:
            return
        rule = _RULES.get(type(node.op))
        if rule is None or node.outputs[0].type.dtype.is_float:
            return
        given: list[OpenArray] = []
        for v in node.inputs:
            found = self._known.get(v)
            if found is None:
                known = constant(v)
                if known is None or known.dtype.kind not in "iub":
                    return
                found = known.astype(object)
            given.append(found)
        try:
            made = np.asarray(rule(node.op, given), object)
        except (SizeError, ArithmeticError, LookupError, TypeError, ValueError):
            return  # not to be followed; whoever needs it says so
        self._known[node.outputs[0]] = made.reshape(tuple(map(int, node.outputs[0].shape)))


# --------------------------------------------------------------------------------------------------------- rules

_Rule: TypeAlias = Callable[[Any, Sequence[OpenArray]], Any]


def _pairwise(fn: Callable[[Any, Any], Any]) -> _Rule:
    ufunc = np.frompyfunc(fn, 2, 1)

    def rule(op: Op, given: Sequence[OpenArray]) -> Any:
        total = given[0]
        for x in given[1:]:
            total = ufunc(total, x)
        return total

    return rule


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero, as ONNX has it; of numbers that are known not to be negative."""
    if not (a >= 0 and b > 0):
        raise SizeError(f"({a}) / ({b})")
    return a // b


def _where(op: Where, given: Sequence[OpenArray]) -> Any:
    def chosen(cond: Any, a: Any, b: Any) -> Any:
        return a if cond else b

    return np.frompyfunc(chosen, 3, 1)(*given)


def _gather(op: Gather, given: Sequence[OpenArray]) -> Any:
    at = op.at if op.at is not None else given[1].astype(np.int64)
    return np.take(given[0], at, op.axis)


def _slice(op: Slice, given: Sequence[OpenArray]) -> Any:
    places = zip(op.starts, op.steps, op.sizes, strict=True)
    if any(is_open((a, n)) for a, _, n in zip(op.starts, op.steps, op.sizes, strict=True)):
        raise SizeError("a slice of a shape with open bounds")
    return given[0][np.ix_(*(first + step * np.arange(size) for first, step, size in places))]


def _cast(op: Cast, given: Sequence[OpenArray]) -> Any:
    if not op.dtype.is_int:
        raise SizeError(f"a size as {op.dtype.value}")
    return given[0]


def _reduced(fn: Callable[[Sequence[int]], int]) -> _Rule:
    def rule(op: Any, given: Sequence[OpenArray]) -> Any:
        x = given[0]
        if x.ndim > 1 or tuple(op.axes) not in ((), (0,)):
            raise SizeError("a reduction of more than one axis")
        return fn(list(x.reshape(-1)))

    return rule


_RULES: Mapping[type[Op], _Rule] = {
    Sizes: lambda op, _: np.array(op.sizes, object),
    Identity: lambda _, x: x[0],
    Reshape: lambda _, x: x[0],
    Transpose: lambda op, x: x[0].transpose(op.perm),
    Expand: lambda op, x: np.broadcast_to(x[0], tuple(map(int, op.shape))),
    Concat: lambda op, x: np.concatenate(list(x), op.axis),
    Gather: _gather,
    Slice: _slice,
    Cast: _cast,
    Add: _pairwise(lambda a, b: a + b),
    Sub: _pairwise(lambda a, b: a - b),
    Mul: _pairwise(lambda a, b: a * b),
    Div: _pairwise(_quotient),
    Mod: _pairwise(lambda a, b: a % b),
    Max: _pairwise(lambda a, b: a if a >= b else b),
    Min: _pairwise(lambda a, b: a if a <= b else b),
    Equal: _pairwise(lambda a, b: a == b),
    Less: _pairwise(lambda a, b: a < b),
    LessOrEqual: _pairwise(lambda a, b: a <= b),
    Greater: _pairwise(lambda a, b: a > b),
    GreaterOrEqual: _pairwise(lambda a, b: a >= b),
    Not: lambda _, x: np.frompyfunc(lambda a: not a, 1, 1)(x[0]),
    Where: _where,
    ReduceProd: _reduced(math.prod),
    ReduceSum: _reduced(sum),
    ReduceMax: _reduced(max),
    ReduceMin: _reduced(min),
}
