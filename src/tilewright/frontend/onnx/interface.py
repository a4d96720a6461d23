"""The names and types around the nodes of an ONNX graph: inputs with their shapes, and the order of the nodes."""

import heapq
import shlex
from collections.abc import Collection, Mapping, Sequence

from onnx import NodeProto, ValueInfoProto

from tilewright.frontend.onnx.file import HOST_TYPES, ModelLimits, check_tensor_bytes, type_name
from tilewright.frontend.onnx.names import free_names, label
from tilewright.ops.opdef import ONNX_DTYPES, TensorType
from tilewright.support.arrays import Shapes
from tilewright.support.errors import Hint, MultipleProgramsError, UserError
from tilewright.support.input_spec import InputSpec, dims_text

# --------------------------------------------------------------------------------------------------- inputs


class OpenDims(MultipleProgramsError):
    """The model leaves dimensions open that nobody has given."""


def input_spec(info: ValueInfoProto) -> InputSpec:
    kind = info.type.WhichOneof("value") or "value without type"
    if kind != "tensor_type":
        return InputSpec(info.name, None, None, kind.removesuffix("_type"))
    number = info.type.tensor_type.elem_type
    dtype = ONNX_DTYPES[number].numpy if number in ONNX_DTYPES else HOST_TYPES.get(number)
    if dtype is None:
        raise UserError(f"input {label(info.name)}: elements of type {type_name(number)} are not supported")
    dims = _dims(info)
    return InputSpec(info.name, dtype, None if dims is None else tuple(dims), kind)


def input_types(
    infos: Sequence[ValueInfoProto], shapes: Shapes, limits: ModelLimits
) -> dict[str, TensorType]:
    """The types of the inputs. `shapes` fills open dimensions; a named one that is given once holds everywhere. Inputs
    that only the host can hold are left out.
    """
    by_name: dict[str, ValueInfoProto] = {}
    for info in infos:
        if info.name in by_name:
            raise UserError(f"two inputs are named {label(info.name)}")
        by_name[info.name] = info
    for name in shapes:
        if name not in by_name:
            known = ", ".join(map(label, by_name)) or "none"
            raise UserError(
                f"a shape is given, and the model has no input {label(name)}", hint=f"its inputs are {known}"
            )

    dims = {name: _dims(info) for name, info in by_name.items() if _is_tensor(info)}
    named: dict[str, tuple[int, str]] = {}  # a dimension's extent, and the input that says so
    for name, given in shapes.items():
        if name not in dims:
            raise UserError(f"shapes: input {label(name)} is no tensor")
        _bind(name, dims[name], _checked_shape(name, given), named)
    out: dict[str, TensorType] = {}
    for name in dims:
        shape = tuple(int(n) for n in shapes[name]) if name in shapes else _closed(name, dims[name], named)
        number = by_name[name].type.tensor_type.elem_type
        dtype = ONNX_DTYPES.get(number)
        if dtype is None:
            if number in HOST_TYPES:
                continue
            raise UserError(f"input {label(name)}: elements of type {type_name(number)} are not supported")
        check_tensor_bytes(shape, dtype, limits)
        out[name] = TensorType(dtype, shape)
    return out


def _is_tensor(info: ValueInfoProto) -> bool:
    kind = info.type.WhichOneof("value")
    if kind not in ("tensor_type", "sequence_type", "optional_type", "map_type"):
        raise UserError(f"input {label(info.name)} is a {kind or 'value without type'}, not a tensor")
    return kind == "tensor_type"


def _dims(info: ValueInfoProto) -> list[int | str] | None:
    """Extents, or names of open dimensions ("?" if it has none); None if even the rank is open.

    An extent of 0 or below counts as open: exporters write it for "unknown". Pass `shapes` to really mean 0.
    """
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims = info.type.tensor_type.shape.dim
    return [d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in dims]


def _checked_shape(name: str, given: Sequence[int]) -> tuple[int, ...]:
    shape: list[int] = []
    for n in given:
        try:
            shape.append(n.__index__())
        except AttributeError:
            raise UserError(f"{n!r} is no extent, in the shape that is given for {label(name)}") from None
        if shape[-1] < 0:
            raise UserError(f"{n} is no extent, in the shape that is given for {label(name)}")
    return tuple(shape)


def _bind(
    name: str, dims: list[int | str] | None, shape: tuple[int, ...], named: dict[str, tuple[int, str]]
) -> None:
    if dims is None:
        return
    shown = f"the model has {label(name)} as {dims_text(dims)}"
    if len(dims) != len(shape):
        raise UserError(f"the shape {list(shape)} does not fit: {shown}")
    for want, n in zip(dims, shape, strict=True):
        if isinstance(want, int):
            if want != n:
                raise UserError(f"the shape {list(shape)} does not fit: {shown}")
        elif want != "?":
            before, who = named.setdefault(want, (n, name))
            if before != n:
                raise UserError(f"the dimension {want} is {n} in {label(name)} and {before} in {label(who)}")


def _closed(name: str, dims: list[int | str] | None, named: Mapping[str, tuple[int, str]]) -> tuple[int, ...]:
    if dims is None:
        raise OpenDims(
            f"input {label(name)} has no shape in the model",
            hint=_shape_hint("pass it", name, (1, 3, 224, 224)),
        )
    filled = [named[d][0] if isinstance(d, str) and d in named else d for d in dims]
    still_open = [str(d) for d in filled if isinstance(d, str)]
    if still_open:
        raise OpenDims(
            f"input {label(name)} has open dimensions: {', '.join(still_open)} in {dims_text(dims)}",
            hint=_shape_hint("pass its shape", name, [d if isinstance(d, int) else 1 for d in filled]),
        )
    return tuple(d for d in filled if isinstance(d, int))


def _shape_hint(what: str, name: str, shape: Sequence[int]) -> Hint:
    option = shlex.quote(f"{name}={'x'.join(map(str, shape)) or 'scalar'}")
    return Hint(
        f"{what}, for example shapes={{{label(name)}: {tuple(shape)}}}",
        command=f"{what}, for example --shape {option}",
    )


# ------------------------------------------------------------------------------------------- order of the nodes


def sorted_nodes(
    nodes: Sequence[NodeProto], given: Collection[str], *, is_body: bool = False
) -> list[NodeProto]:
    """The nodes with producers before consumers, otherwise as they stand. UserError for cycles and loose ends; a body
    may use names of the graph around it.
    """
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
        for name in (*node.input, *free_names(node)):
            if name in producer:
                needs.add(producer[name])
            elif name and name not in given and not is_body:
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
        used = (*nodes[at].input, *free_names(nodes[at]))
        at = next(producer[name] for name in used if name in producer and waiting[producer[name]])
        if len(path) > 20:  # a long one: its beginning is enough to find it
            return " ← ".join(_title(nodes[i]) for i in path[:20]) + " ← …"
    return " ← ".join(_title(nodes[i]) for i in [*path[path.index(at) :], at])


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {label(node.name or ', '.join(node.output))}"
