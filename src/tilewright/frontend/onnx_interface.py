"""The names and types around the nodes of an ONNX graph: inputs with their shapes, and the order of the nodes."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from onnx import GraphProto, NodeProto, ValueInfoProto

from tilewright.frontend.onnx_file import Limits, check_tensor_bytes, type_name
from tilewright.ops.opdef import ONNX_DTYPES, TensorType
from tilewright.support.errors import UserError

Shapes: TypeAlias = Mapping[str, Sequence[int]]

_LABEL_CHARS = 120


def label(name: str) -> str:
    """A name from the model in a message: quoted, and not longer than a line."""
    return repr(name if len(name) <= _LABEL_CHARS else name[:_LABEL_CHARS] + "…")


def check_names(graph: GraphProto) -> None:
    """UserError for names that are not UTF-8: protobuf hands those out as bytes."""
    names: list[object] = [graph.name, *(t.name for t in graph.initializer)]
    for info in (*graph.input, *graph.output):
        names += [info.name, *(d.dim_param for d in info.type.tensor_type.shape.dim)]
    for n in graph.node:
        names += [n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute)]
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"the model has a name that is not UTF-8 text: {label(repr(name))}")


# --------------------------------------------------------------------------------------------------- inputs


def input_types(infos: Sequence[ValueInfoProto], shapes: Shapes, limits: Limits) -> dict[str, TensorType]:
    """The types of the inputs. `shapes` fills open dimensions; a named one that is given once holds everywhere."""
    by_name: dict[str, ValueInfoProto] = {}
    for info in infos:
        if info.name in by_name:
            raise UserError(f"two inputs are named {label(info.name)}")
        by_name[info.name] = info
    for name in shapes:
        if name not in by_name:
            known = ", ".join(map(label, by_name)) or "none"
            raise UserError(f"shapes: the model has no input {label(name)}", hint=f"its inputs are {known}")

    dims = {name: _dims(info) for name, info in by_name.items()}
    named: dict[str, tuple[int, str]] = {}  # a dimension's extent, and the input that says so
    for name, given in shapes.items():
        _bind(name, dims[name], _checked_shape(name, given), named)
    out: dict[str, TensorType] = {}
    for name, info in by_name.items():
        shape = tuple(int(n) for n in shapes[name]) if name in shapes else _closed(name, dims[name], named)
        dtype = ONNX_DTYPES.get(info.type.tensor_type.elem_type)
        if dtype is None:
            kind = type_name(info.type.tensor_type.elem_type)
            raise UserError(f"input {label(name)}: elements of type {kind} are not supported")
        check_tensor_bytes(shape, dtype, limits)
        out[name] = TensorType(dtype, shape)
    return out


def _dims(info: ValueInfoProto) -> list[int | str] | None:
    """Extents, or names of open dimensions ("?" if it has none); None if even the rank is open.

    An extent of 0 counts as open: exporters write it for "unknown". Pass `shapes` to really mean 0.
    """
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UserError(f"input {label(info.name)} is a {kind or 'value without type'}, not a tensor")
    if not info.type.tensor_type.HasField("shape"):
        return None
    out: list[int | str] = []
    for d in info.type.tensor_type.shape.dim:
        if d.dim_value < 0:
            raise UserError(f"input {label(info.name)} has a dimension of {d.dim_value}")
        out.append(d.dim_value or d.dim_param or "?")
    return out


def _checked_shape(name: str, given: Sequence[int]) -> tuple[int, ...]:
    shape: list[int] = []
    for n in given:
        try:
            shape.append(n.__index__())
        except AttributeError:
            raise UserError(f"shapes: {n!r} is no extent, in the shape of {label(name)}") from None
        if shape[-1] < 0:
            raise UserError(f"shapes: {n} is no extent, in the shape of {label(name)}")
    return tuple(shape)


def _bind(
    name: str, dims: list[int | str] | None, shape: tuple[int, ...], named: dict[str, tuple[int, str]]
) -> None:
    if dims is None:
        return
    shown = f"the model has {label(name)} as {_dims_text(dims)}"
    if len(dims) != len(shape):
        raise UserError(f"shapes: {list(shape)} does not fit: {shown}")
    for want, n in zip(dims, shape, strict=True):
        if isinstance(want, int):
            if want != n:
                raise UserError(f"shapes: {list(shape)} does not fit: {shown}")
        elif want != "?":
            before, who = named.setdefault(want, (n, name))
            if before != n:
                raise UserError(f"shapes: {want} is {n} in {label(name)} and {before} in {label(who)}")


def _closed(name: str, dims: list[int | str] | None, named: Mapping[str, tuple[int, str]]) -> tuple[int, ...]:
    if dims is None:
        raise UserError(
            f"input {label(name)} has no shape in the model",
            hint=f"pass it, for example shapes={{{label(name)}: (1, 3, 224, 224)}}",
        )
    filled = [named[d][0] if isinstance(d, str) and d in named else d for d in dims]
    still_open = [str(d) for d in filled if isinstance(d, str)]
    if still_open:
        raise UserError(
            f"input {label(name)} has open dimensions: {', '.join(still_open)} in {_dims_text(dims)}",
            hint=f"pass its shape, for example shapes={{{label(name)}: ({_example(filled)})}}",
        )
    return tuple(d for d in filled if isinstance(d, int))


def _dims_text(dims: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _example(dims: Sequence[int | str]) -> str:
    text = ", ".join(str(d) if isinstance(d, int) else "1" for d in dims)
    return text + "," if len(dims) == 1 else text


# ------------------------------------------------------------------------------------------- order of the nodes


def sorted_nodes(nodes: Sequence[NodeProto], given: Collection[str]) -> list[NodeProto]:
    """The nodes with producers before consumers, otherwise as they stand. UserError for cycles and loose ends."""
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name and (name in producer or name in given):
                raise UserError(f"two nodes, inputs or initializers define {label(name)}", where=_title(node))
            if name:
                producer[name] = i
    waiting: list[int] = []
    consumers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        needs: set[int] = set()
        for name in node.input:
            if name in producer:
                needs.add(producer[name])
            elif name and name not in given:
                raise UserError(
                    f"the input {label(name)} is defined nowhere in the model", where=_title(node)
                )
        for p in needs:
            consumers[p].append(i)
        waiting.append(len(needs))
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for c in consumers[i]:
            waiting[c] -= 1
            if waiting[c] == 0:
                heapq.heappush(ready, c)
    if len(order) < len(nodes):
        raise UserError(f"the model has a cycle: {_cycle(nodes, producer, waiting)}")
    return [nodes[i] for i in order]


def _cycle(nodes: Sequence[NodeProto], producer: Mapping[str, int], waiting: Sequence[int]) -> str:
    """Follow unmet inputs backwards from any node that never became ready, until one repeats."""
    at = next(i for i, n in enumerate(waiting) if n)
    path: list[int] = []
    while at not in path[:20]:
        path.append(at)
        at = next(producer[name] for name in nodes[at].input if name in producer and waiting[producer[name]])
        if len(path) > 20:  # a long one: its beginning is enough to find it
            return " ← ".join(_title(nodes[i]) for i in path[:20]) + " ← …"
    return " ← ".join(_title(nodes[i]) for i in [*path[path.index(at) :], at])


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {label(node.name or ', '.join(node.output))}"
