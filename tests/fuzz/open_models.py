"""Random ONNX models with open dimensions, by the rules of static ones.

Rules compute with shapes as with ints. Here some of these are open (`support/sizes.py`), and what a rule makes of them
is written into the model as exporters write it: a shape that has an open number is computed by Shape, Gather and
arithmetic; a constant of an open shape is an input, or a part of a larger constant. What a rule gets wrong about open
numbers makes a model that ONNX Runtime refuses at some size; such models are not used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from tests.fuzz.random_models import Generator, Value
from tests.onnx_cases import Array, Model
from tilewright.support.sizes import Dim, DimUnits, SizeError, SizeExpr, SymInt, size_of, sym_int

RANGES = (
    (1, 40, 1),
    (2, 17, 1),
    (1, 7, 1),
    (3, 33, 1),
    (1, 70, 1),
    (8, 96, 8),
    (4, 16, 4),
    (32, 96, 8),
    (1, 3, 1),
)
RANGES_IN_FEW = ((1, 9, 1), (1, 16, 1), (2, 8, 2), (1, 4, 1))  # of models with several open dimensions


class OpenModel(Model):
    """An ONNX model whose inputs may have open dimensions."""

    def __init__(self, seed: int, opset: int = 18) -> None:
        super().__init__(seed, opset)
        self._places: dict[Dim, tuple[str, int]] = {}  # an input, and the axis that has the size
        self._sizes: dict[SizeExpr, str] = {}

    def input(self, *shape: int, dtype: Any = np.float32) -> str:
        if not all(_is_plain(n) for n in shape):
            data = self.rng.standard_normal([int(n) for n in shape])
            return self.constant(data > 0 if dtype is np.bool_ else (data * 3).astype(dtype))
        named: list[Any] = [_name(n) if isinstance(n, SymInt) else n for n in shape]
        name = super().input(*named, dtype=dtype)
        for axis, n in enumerate(shape):
            if isinstance(n, SymInt):
                (dim,) = n.size.dims
                self._places.setdefault(dim, (name, axis))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        return super().constant(value, dtype)

    def part(self, value: Array, shape: Sequence[int]) -> str:
        """The first elements of a constant, as many as an open shape has."""
        name = self.constant(value)
        axes = [d for d, n in enumerate(shape) if isinstance(n, SymInt)]
        if not axes:
            return name
        zeros = super().ints(*(0 for _ in axes))
        return self.op("Slice", name, zeros, self.ints(*(shape[d] for d in axes)), super().ints(*axes))

    def ints(self, *values: int) -> str:
        """Integers, computed where they are open."""
        if not any(isinstance(n, SymInt) for n in values):
            return super().ints(*values)
        parts: list[str] = []
        for n in values:
            parts.append(self.size(n) if isinstance(n, SymInt) else super().ints(n))
        return self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def size(self, n: int) -> str:
        """A number as an array of one element."""
        expr = size_of(n)
        if expr not in self._sizes:
            self._sizes[expr] = self._computed(expr)
        return self._sizes[expr]

    def _computed(self, expr: SizeExpr) -> str:
        total = None
        for monomial, c in expr.terms:
            product = None
            for atom in monomial:
                if isinstance(atom, DimUnits):
                    term = self._dim(atom.dim)
                else:
                    whole = SizeExpr.of(atom.by)
                    term = self.op("Div", self.size(SymInt(atom.size)), super().ints(whole.constant or 1))
                product = term if product is None else self.op("Mul", product, term)
            if product is None:
                product = super().ints(c)
            elif c != 1:
                product = self.op("Mul", product, super().ints(c))
            total = product if total is None else self.op("Add", total, product)
        assert total is not None
        return total

    def _dim(self, dim: Dim) -> str:
        name, axis = self._places[dim]
        if self.rng.random() < 0.5:
            found = self.op("Shape", name, start=axis, end=axis + 1)
        else:
            found = self.op("Gather", self.op("Shape", name), super().ints(axis), axis=0)
        return found if dim.multiple == 1 else self.op("Div", found, super().ints(dim.multiple))


def _is_plain(n: int) -> bool:
    """A dimension itself, or a number."""
    return not isinstance(n, SymInt) or any(n.size == SizeExpr.of_dim(d) for d in n.size.dims)


def _name(n: SymInt) -> str:
    (dim,) = n.size.dims
    return dim.name


class OpenGenerator(Generator):
    """A model with open dimensions in the making."""

    max_size: int

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.m: OpenModel = OpenModel(seed)
        count = self.pick((1, 1, 2, 2, 3))
        ranges = RANGES if count == 1 or self.max_size > 50_000 else (*RANGES[:4], *RANGES_IN_FEW * 2)
        self.open: list[int] = []
        for name in ("n", "m", "batch")[:count]:
            least, most, step = self.pick(ranges)
            self.open.append(sym_int(Dim(name, least, most, step)))
        self.max_size *= 4  # at the largest sizes of all dimensions
        self.waiting = list(self.open)  # those that no input has yet

    def add_input(self) -> None:
        rank = self.pick((1, 2, 2, 3, 3, 4, 4))
        shape: list[int] = [self.pick((1, 2, 3, 4, 5, 8, 12, 16)) for _ in range(rank)]
        for d in self.rng.permutation(rank):
            if self.waiting:
                shape[d] = self.waiting.pop(0)
            elif self.chance(0.25):
                shape[d] = self.pick(self.open)
        while math.prod(map(int, shape)) > self.max_size // 4:
            if all(isinstance(n, SymInt) or n == 1 for n in shape):
                break
            shape = [n if isinstance(n, SymInt) else max(1, n // 2) for n in shape]
        self.values.append(Value(self.m.input(*shape, dtype=self.dtype), tuple(shape)))

    def floats(self, *shape: int) -> str:
        return self._some(self.rng.standard_normal([int(n) for n in shape]), shape)

    def scaled(self, fan_in: int, *shape: int) -> str:
        return self._some(self.rng.standard_normal([int(n) for n in shape]) / math.sqrt(int(fan_in)), shape)

    def _some(self, data: Array, shape: Sequence[int]) -> str:
        is_open = any(isinstance(n, SymInt) for n in shape)
        if is_open and all(_is_plain(n) for n in shape) and self.chance(0.5):
            name = self.m.input(*shape, dtype=self.dtype)
            return self.m.op("Mul", name, self.number(float(np.abs(data).mean())))
        return self.m.part(data.astype(self.dtype), shape)

    def add(
        self, shape: Sequence[int], op: str, inputs: Sequence[Value | str], to: str = "values", **attrs: Any
    ) -> Value:
        check_sizes(shape, self.max_size)
        names = [i.name if isinstance(i, Value) else i for i in inputs]
        v = Value(self.m.op(op, *names, **attrs), tuple(shape))
        self.keep(v, inputs, to)
        return v

    def keep(self, v: Value, inputs: Sequence[Value | str], to: str = "values") -> None:
        check_sizes(v.shape, self.max_size)
        super().keep(v, inputs, to)


def check_sizes(shape: Sequence[int], most: int) -> None:
    if any(size_of(n).bounds[0] < 1 for n in shape) or math.prod(map(int, shape)) > most:
        raise SizeError("a rule does not fit")


@dataclass(frozen=True)
class RandomOpenModel:
    model: ModelProto
    dims: Mapping[str, Dim]


def feeds_at(model: ModelProto, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """Numbers for the inputs of a model where its dimensions have these sizes."""
    found: dict[str, Array] = {}
    for v in model.graph.input:
        dims = v.type.tensor_type.shape.dim
        shape = tuple(sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims)
        dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        if dtype.kind == "f":
            found[v.name] = rng.standard_normal(shape).astype(dtype)
        else:
            found[v.name] = rng.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)
    return found


def sizes_to_try(dims: Sequence[Dim], rng: np.random.Generator, count: int = 10) -> list[dict[str, int]]:
    """The ends of all ranges and what is next to them, then any; small sizes follow large ones."""

    def of_unit(d: Dim, unit: int) -> int:
        low, high = d.units
        return min(max(unit, low), high) * d.multiple

    ends = [
        {d.name: d.units[1] * d.multiple for d in dims},
        {d.name: d.units[0] * d.multiple for d in dims},
        {d.name: of_unit(d, d.units[1] - 1) for d in dims},
        {d.name: of_unit(d, 1) for d in dims},
    ]
    while len(ends) < count:
        ends.append({d.name: of_unit(d, int(rng.integers(d.units[0], d.units[1] + 1))) for d in dims})
    return ends
