"""Open sizes in the words of ONNX: names of dimensions, and nodes that compute numbers from the shapes of inputs.

A part of a model has no inputs that tell the sizes of the model's dimensions but the shapes of its own: `n` of an input
of shape [batch, n], or of one of [n + 1], or of [batch * n] beside one of [batch]. What does not follow from them
cannot be written.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from tilewright.graph.origin import OpenNumbers
from tilewright.graph.value import Value
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.sizes import Atom, DimUnits, Monomial, SizeExpr, SymInt, size_of

_LEAST_OPSET = 7  # the first in which arithmetic broadcasts as it does now


class DimNames:
    """How open sizes are called: those of a dimension as it is, others by their formula. Equal sizes have one name, and
    others never the same.
    """

    def __init__(self) -> None:
        self._names: dict[SizeExpr, str] = {}

    def shape(self, shape: Iterable[int]) -> list[int | str]:
        return [self._name(n.size) if isinstance(n, SymInt) else n for n in shape]

    def numbers(self, shape: Iterable[int | str | None]) -> tuple[int, ...] | None:
        """A shape in which sizes have the names that they were given here; None if one has not."""
        sizes = {name: SymInt(size) for size, name in self._names.items()}
        found = [n if isinstance(n, int) else sizes.get(n or "") for n in shape]
        return None if None in found else tuple(n for n in found if n is not None)

    def _name(self, size: SizeExpr) -> str:
        if size not in self._names:
            dim = next((d.name for d in size.dims if size == SizeExpr.of_dim(d)), None)
            name = str(size) if dim is None else dim
            while name in self._names.values():
                name += "~"
            self._names[size] = name
        return self._names[size]


class NumberWriter:
    """Writes numbers that depend on open sizes as nodes over the shapes of `inputs`. `literal` makes a constant; no
    name is one that is `taken`.
    """

    def __init__(
        self, inputs: Sequence[Value], literal: Callable[[Array], str], taken: Collection[str]
    ) -> None:
        self.nodes: list[NodeProto] = []
        self._literal, self._taken = literal, taken
        self._axes: dict[SizeExpr, tuple[Value, int]] = {}
        for v in inputs:
            for axis, n in enumerate(v.shape):
                if isinstance(n, SymInt):
                    self._axes.setdefault(n.size, (v, axis))
        self._shapes: dict[Value, str] = {}
        self._made: dict[SizeExpr, str] = {}  # lists of one int64
        self._atoms: dict[Atom, str] = {}
        self._open: set[Atom] = set()  # being worked out

    def write(self, numbers: OpenNumbers, opset: int) -> str:
        """The name of the numbers, for nodes of an opset."""
        if opset < _LEAST_OPSET:
            raise UserError(f"open sizes are not written as nodes of opset {opset}")
        found = [self._number(size_of(n)) for n in numbers.values]
        name = self._node("Concat", found, axis=0)
        if numbers.shape != (len(found),):
            name = self._node("Reshape", [name, self._literal(np.array(numbers.shape, np.int64))])
        if numbers.dtype != np.int64:
            name = self._node("Cast", [name], to=helper.np_dtype_to_tensor_dtype(numbers.dtype))
        return name

    def _number(self, size: SizeExpr) -> str:
        if size not in self._made:
            self._made[size] = self._written(size)
        return self._made[size]

    def _written(self, size: SizeExpr) -> str:
        if size.constant is not None:
            return self._literal(np.array([size.constant], np.int64))
        if size in self._axes:
            return self._axis(*self._axes[size])
        total = ""
        for monomial, factor in size.terms:
            term = self._product(monomial, factor)
            total = self._node("Add", [total, term]) if total else term
        return total

    def _product(self, monomial: Monomial, factor: int) -> str:
        whole = SizeExpr(((monomial, 1),))
        if monomial and whole in self._axes:
            found = self._axis(*self._axes[whole])
        else:
            found = ""
            for atom in monomial:
                value = self._atom(atom)
                found = self._node("Mul", [found, value]) if found else value
        if found and factor == 1:
            return found
        number = self._literal(np.array([factor], np.int64))
        return self._node("Mul", [found, number]) if found else number

    def _atom(self, atom: Atom) -> str:
        if atom not in self._atoms:
            if atom in self._open:
                raise _unknown(atom)
            self._open.add(atom)
            try:
                self._atoms[atom] = self._solved(atom)
            finally:
                self._open.discard(atom)
        return self._atoms[atom]

    def _solved(self, atom: Atom) -> str:
        """From the size of an axis that has it in one term: (size - other terms) / what it is multiplied by."""
        for size, (value, axis) in self._axes.items():
            having = [(m, c) for m, c in size.terms if atom in m]
            if len(having) != 1 or having[0][0].count(atom) != 1:
                continue
            ((monomial, factor),) = having
            rest = tuple(a for a in monomial if a != atom)
            by, others = SizeExpr(((rest, factor),)), SizeExpr(tuple(t for t in size.terms if t != having[0]))
            if by.bounds[0] < 1:
                continue
            try:
                divisor = "" if by.constant == 1 else self._number(by)
                other = self._number(others) if others.terms else ""
            except UserError:  # from another axis, then
                continue
            found = self._axis(value, axis)
            found = self._node("Sub", [found, other]) if other else found
            return self._node("Div", [found, divisor]) if divisor else found
        if isinstance(atom, DimUnits) or atom.size.bounds[0] < 0:  # Div rounds towards zero
            raise _unknown(atom)
        return self._node("Div", [self._number(atom.size), self._literal(np.array([atom.by], np.int64))])

    def _axis(self, value: Value, axis: int) -> str:
        if value not in self._shapes:
            self._shapes[value] = self._node("Shape", [value.name])
        return self._node("Gather", [self._shapes[value], self._literal(np.array([axis], np.int64))])

    def _node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"size~{len(self.nodes)}"
        while name in self._taken:
            name += "~"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name


def _unknown(atom: Atom) -> UserError:
    return UserError(f"the size {atom} does not follow from the shapes of the region's inputs")
