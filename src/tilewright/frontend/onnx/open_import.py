"""Import of a model whose dimensions are left open: shapes are sizes over these (`support/sizes.py`).

Shape arithmetic runs on open numbers as it does on plain ones. Where an open number got lost on the way (through numpy,
a float, an operator that nobody follows), a plain one is in its place. So a model is imported twice, with other upper
ends of the ranges: a plain number that differs refuses the open program, and says where.

Two dimensions that a model has different names for, and that meet where they have to be equal (a mask of `total`
elements, a cache of `past` and one token), are made one: the importer tries again with one expressed by the other, and
the equality is held to when the program runs.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

from tilewright.frontend.onnx.importer import StageImporter
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.graph.graph import Graph, Node
from tilewright.graph.passes.eliminate_dead import eliminate_dead
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import TensorType
from tilewright.support.arrays import Array, Shapes
from tilewright.support.errors import MultipleProgramsError, UserError
from tilewright.support.input_spec import InputSpec, dim_name
from tilewright.support.sizes import (
    Dim,
    Guard,
    SizeError,
    SymInt,
    assuming,
    is_open,
    recording,
    size_of,
    sym_int,
)

# How much lower the upper end of the first dimension is in the second import, in steps. That of each further one is
# lowered by a step more, so that a number lost on the way cannot hide in a difference or a ratio of two.
_OTHER_ENDS = 3
_COMPARED = 12  # sizes at which what two imports have computed is compared


class NotFollowed(MultipleProgramsError):
    """The shapes of the model are not functions of its open dimensions that we can follow."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenGraph:
    """A model for all sizes of `dims` that keep the `guards`."""

    graph: Graph
    dims: tuple[Dim, ...]
    guards: tuple[Guard, ...]


def open_dims(specs: Sequence[InputSpec]) -> tuple[str, ...]:
    """The names of the dimensions that a model leaves open."""
    found = [
        dim_name(spec, d) for spec in specs for d, n in enumerate(spec.shape or ()) if isinstance(n, str)
    ]
    return tuple(dict.fromkeys(found))


def import_open(model: OnnxModel, dims: Mapping[str, Dim]) -> OpenGraph:
    """Raises NotFollowed, HostNodes, or what an import of static shapes raises."""
    fixed = {n: d.most for n, d in dims.items() if d.least == d.most}
    try:
        first = _imported(model, dims, fixed)
    except MultipleProgramsError:
        raise
    except UserError as e:  # sizes that are equal may not be known to be so
        _whole(model, {n: d.most for n, d in dims.items()})
        raise NotFollowed(f"the model makes no sense for all sizes: {e.message}") from e
    other = _other_ends(dims, -1)
    if not all(g.holds({n: d.most for n, d in other.items()}) for g in first.guards):
        other = _other_ends(dims, 1)  # the model means something else for the least sizes
    try:
        second = _imported(model, other, fixed)
    except MultipleProgramsError:
        raise
    except UserError as e:
        raise NotFollowed(f"the model makes no sense for other sizes: {e.message}") from e
    both = {n: replace(d, most=min(d.most, other[n].most)) for n, d in dims.items()}
    _compare(first.graph, second.graph, both)
    return first


def _other_ends(dims: Mapping[str, Dim], side: int) -> dict[str, Dim]:
    """The ranges with other upper ends: below, if `side` is -1, or above."""
    found: dict[str, Dim] = {}
    for i, (n, d) in enumerate(dims.items()):
        most = d.most if d.least == d.most else max(d.least, d.most + side * (_OTHER_ENDS + i) * d.multiple)
        found[n] = replace(d, most=most)
    return found


@contextmanager
def following(guards: Iterable[Guard]) -> Generator[None]:
    """Sizes keep these guards, inside; what goes beyond them is NotFollowed."""
    try:
        with assuming(guards):
            yield
    except SizeError as e:
        raise NotFollowed(f"an operator of the model does not take open dimensions: {e}") from e


def _imported(model: OnnxModel, dims: Mapping[str, Dim], fixed: Mapping[str, int]) -> OpenGraph:
    sizes = {**{n: sym_int(d) for n, d in dims.items()}, **fixed}
    try:
        with recording() as guards:
            graph = _whole(model, sizes)
    except SizeError as e:
        raise NotFollowed(f"the sizes of open dimensions cannot be followed: {e}") from e
    if graph.checks:
        raise NotFollowed("indices are checked against given shapes, not against ranges of dimensions")
    found = {d for v in graph.inputs for n in v.shape if isinstance(n, SymInt) for d in n.size.dims}
    return OpenGraph(graph, tuple(sorted(found)), tuple(guards.found))


def import_at_most(model: OnnxModel, dims: Mapping[str, Dim]) -> Graph:
    """The model for the largest sizes alone."""
    return _whole(model, {n: d.most for n, d in dims.items()})


def import_sized(model: OnnxModel, shapes: Shapes) -> Graph:
    """A part of a model that was imported with open dimensions, for inputs of these shapes, which have open sizes. They
    were followed when it was imported; so they are now.
    """
    types = {
        s.name: TensorType(DType.of(s.dtype), shapes[s.name]) for s in model.specs if s.dtype is not None
    }
    return eliminate_dead(_imported_as(model, types))


def _whole(model: OnnxModel, sizes: Mapping[str, int]) -> Graph:
    types: dict[str, TensorType] = {}
    for spec in model.specs:
        if spec.dtype is None or spec.shape is None:
            raise NotFollowed(f"input {spec.name} has no shape in the model")
        shape = tuple(n if isinstance(n, int) else sizes[dim_name(spec, d)] for d, n in enumerate(spec.shape))
        types[spec.name] = TensorType(DType.of(spec.dtype), shape)
    return _imported_as(model, types)


def _imported_as(model: OnnxModel, types: Mapping[str, TensorType]) -> Graph:
    importer = StageImporter(model.scope, dict(types))
    for name, type in types.items():
        importer.declare(name, type)
    importer.import_steps(model.scope.steps)
    return importer.whole(model.scope.outputs)


# -------------------------------------------------------------------------------------------------- the comparison


def _compare(a: Graph, b: Graph, dims: Mapping[str, Dim]) -> None:
    """NotFollowed if the two imports differ in more than the upper ends of ranges."""
    if len(a.nodes) != len(b.nodes) or a.constants.keys() != b.constants.keys():
        same = len(a.nodes) == len(b.nodes)
        if not same or [c.name for c in a.constants] != [c.name for c in b.constants]:
            raise NotFollowed("the model has other nodes for other sizes of its open dimensions")
    for c, d in zip(a.constants, b.constants, strict=True):
        if not _same_bytes(a.constants[c], b.constants[d]):
            raise NotFollowed(
                f"the constant {c.name} depends on an open dimension in a way that is not followed"
            )
    for n, m in zip(a.nodes, b.nodes, strict=True):
        if not _same(n.op, m.op, dims):
            raise _lost(n, "its attributes depend")
        for v, w in zip(n.outputs, m.outputs, strict=True):
            if not _same(v.shape, w.shape, dims):
                raise _lost(n, "the shape of its result depends")


def _same_bytes(a: Array, b: Array) -> bool:
    if a is b or (a.dtype, a.shape) != (b.dtype, b.shape):
        return a is b
    x, y = (np.ascontiguousarray(c).reshape(-1).view(np.uint8) for c in (a, b))
    return np.array_equal(x, y)


def _lost(node: Node, what: str) -> NotFollowed:
    return NotFollowed(f"{node}: {what} on an open dimension in a way that is not followed")


def _same(a: object, b: object, dims: Mapping[str, Dim]) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y, dims) for x, y in zip(a, b, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(a, int) and isinstance(b, int) and is_open((a, b)):
        # Ranges have their part in how a size is written: a quotient may be a number in the smaller one.
        return all(size_of(a).evaluate(at) == size_of(b).evaluate(at) for at in _places(dims))
    if is_dataclass(a) and type(a) is type(b):  # pyright: ignore[reportUnknownArgumentType]
        return all(_same(getattr(a, f.name), getattr(b, f.name), dims) for f in fields(a))
    return a is b or bool(a == b) or (a != a and b != b)


def _places(dims: Mapping[str, Dim]) -> Iterator[dict[str, int]]:
    """Sizes to compare at: the ends of each range and some between, others for each dimension."""
    for n in range(_COMPARED):
        yield {
            name: (d.units[0] + n * (k + 1) % (d.units[1] - d.units[0] + 1)) * d.multiple
            for k, (name, d) in enumerate(dims.items())
        }
