"""Operators that other operators compute.

A composite is declared once, like an op, but has no blocks: `write` gives the nodes that compute it for the types of
its inputs, and the importer puts them in its place. So the parts are grouped, scheduled and folded like any others.

    class QuickGelu(Composite):
        onnx = ("com.microsoft.QuickGelu",)

        @classmethod
        def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
            x = body[0]
            return (x * body.op("Sigmoid", x * node.real("alpha", 1.702)),)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ops.axes import narrow
from tilewright.ops.hostop import HostSample
from tilewright.ops.opdef import ONNX_NUMBERS, OnnxNode
from tilewright.ops.spec import BodySpec, NodeSpec
from tilewright.support.arrays import Array
from tilewright.support.sizes import SymInt, is_open

OPSET = 24  # of ONNX's own operators, in all bodies


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A value of a body. Arithmetic with it writes nodes; numbers take its element type."""

    body: "CompositeBody" = field(repr=False)
    name: str
    dtype: DType

    def __add__(self, other: "Term | float") -> "Term":
        return self.body.op("Add", self, self._operand(other))

    def __sub__(self, other: "Term | float") -> "Term":
        return self.body.op("Sub", self, self._operand(other))

    def __mul__(self, other: "Term | float") -> "Term":
        return self.body.op("Mul", self, self._operand(other))

    def __truediv__(self, other: "Term | float") -> "Term":
        return self.body.op("Div", self, self._operand(other))

    def __lt__(self, other: "Term | float") -> "Term":
        return self.body.op("Less", self, self._operand(other), dtype=DType.BOOL)

    def __ge__(self, other: "Term | float") -> "Term":
        return self.body.op("GreaterOrEqual", self, self._operand(other), dtype=DType.BOOL)

    def __and__(self, other: "Term") -> "Term":
        return self.body.op("And", self, other)

    def _operand(self, other: "Term | float") -> "Term":
        return other if isinstance(other, Term) else self.body.number(other, self.dtype)


class CompositeBody:
    """Collects the nodes of a composite. `body[i]` is its input i. Extents may be open: they become integers of a body;
    numpy would take them for numbers.
    """

    def __init__(self, node: OnnxNode, scope: str = "") -> None:
        self._node, self._scope = node, scope
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._inputs = [f"input_{i}" for i in range(len(node.inputs))]
        self._nodes: list[NodeSpec] = []

    def __getitem__(self, i: int) -> Term:
        """A required input."""
        return Term(self, self._inputs[i], self._node.input(i).dtype)

    def get(self, i: int) -> Term | None:
        """An input that may be left out."""
        return self[i] if self._node.has(i) else None

    def ops(
        self, op_type: str, outputs: int, *inputs: Term | None, dtype: DType | None = None, **attrs: Any
    ) -> tuple[Term, ...]:
        """A node, and its outputs; they have the element type of the first input unless `dtype` is given."""
        names = tuple(f"t{len(self._nodes)}_{i}" for i in range(outputs))
        given = tuple("" if t is None else t.name for t in inputs)
        self._nodes.append(NodeSpec(op_type, given, names, attrs))
        first = next((t.dtype for t in inputs if t is not None), DType.F32)
        return tuple(Term(self, n, dtype or first) for n in names)

    def op(self, op_type: str, *inputs: Term | None, dtype: DType | None = None, **attrs: Any) -> Term:
        """A node with one output."""
        (out,) = self.ops(op_type, 1, *inputs, dtype=dtype, **attrs)
        return out

    def constant(self, array: Array) -> Term:
        return self.op("Constant", value=array, dtype=DType.of(array.dtype))

    def number(self, value: float, dtype: DType) -> Term:
        """A scalar; what the type cannot hold is infinite."""
        if isinstance(value, SymInt):
            return self.cast(self.op("Squeeze", self.integers(value), self.integers(0)), dtype)
        return self.constant(narrow(np.asarray(value), dtype))

    def integers(self, *numbers: int) -> Term:
        if not is_open(numbers):
            return self.constant(np.array(numbers, np.int64))
        name = f"{self._scope}size_{len(self._sizes)}"
        self._sizes[name] = numbers
        return Term(self, name, DType.I64)

    def places(self, count: int) -> Term:
        """0, 1, … as i64."""
        if not is_open((count,)):
            return self.constant(np.arange(count, dtype=np.int64))
        return self.op("Range", *(self.number(n, DType.I64) for n in (0, count, 1)))

    def filled(self, value: float, dtype: DType, *shape: int) -> Term:
        """A tensor of one value."""
        if not is_open(shape):
            return self.constant(np.full(shape, value, dtype.numpy))
        one = np.full(1, value, dtype.numpy)
        return self.op("ConstantOfShape", self.integers(*shape), value=one, dtype=dtype)

    def cast(self, x: Term, dtype: DType) -> Term:
        return x if x.dtype is dtype else self.op("Cast", x, to=ONNX_NUMBERS[dtype], dtype=dtype)

    def reshape(self, x: Term, *shape: int) -> Term:
        # Zero is an extent here, as everywhere else.
        return self.op("Reshape", x, self.integers(*shape), allowzero=int(-1 not in shape))

    def transpose(self, x: Term, *perm: int) -> Term:
        return self.op("Transpose", x, perm=perm)

    def split(self, x: Term, axis: int, *sizes: int) -> tuple[Term, ...]:
        return self.ops("Split", len(sizes), x, self.integers(*sizes), axis=axis)

    def concat(self, axis: int, *parts: Term | None) -> Term:
        """Of the parts that are there."""
        present = [p for p in parts if p is not None]
        return present[0] if len(present) == 1 else self.op("Concat", *present, axis=axis)

    def finish(self, results: Sequence[Term | None]) -> BodySpec:
        outputs = [f"absent_{i}" if t is None else t.name for i, t in enumerate(results)]
        outputs += [f"absent_{i}" for i in range(len(outputs), self._node.outputs)]
        nodes = tuple(self._nodes)
        return BodySpec(
            self._node.op_type, nodes, tuple(self._inputs), tuple(outputs), sizes=dict(self._sizes)
        )


class Composite(ABC):
    """Subclasses are never instantiated: they name ONNX operators, and write what computes them."""

    onnx: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def write(cls, node: OnnxNode, body: CompositeBody) -> Sequence[Term | None]:
        """Add nodes to the body; the outputs, None for one that nothing computes. UserError for what makes no sense."""

    @classmethod
    @abstractmethod
    def samples(cls, rng: np.random.Generator) -> Iterable[HostSample]:
        """Small cases that cover attributes, absent inputs and edge shapes."""


def body_of(cls: type[Composite], node: OnnxNode, scope: str = "") -> BodySpec:
    """What computes a composite, for a node. Names of values that are not its own begin with `scope`."""
    body = CompositeBody(node, scope)
    return body.finish(cls.write(node, body))
