"""What a model says of itself, read from the bytes of its file.

Names, types and metadata are a small part of a model, and a program that is in the cache runs without ONNX's package,
whose import takes longer than everything else. So the few fields that callers may ask for are read here, from
protobuf's wire format; weights and nodes are stepped over. The bytes are hostile: every length is held against what is
there, and anything else than well-formed fields is a WireError.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ort.element_types import tensor_word

ModelBytes: TypeAlias = bytes | mmap.mmap | memoryview

_BRANCHES = frozenset({"If", "Loop"})
_NESTING = 8  # of types within types


class WireError(Exception):
    """These bytes are no message."""


@dataclass(frozen=True, slots=True)
class WireDim:
    """A dimension of a tensor: its extent, or its name, or neither."""

    value: int | None
    name: str
    denotation: str


@dataclass(frozen=True, slots=True)
class WireValue:
    """An input or output. `dims` is None where the model does not tell even the rank."""

    name: str
    type: str
    dims: tuple[WireDim, ...] | None


@dataclass(frozen=True, slots=True)
class WireModel:
    """A model without its nodes and weights. `has_graph` is False of what only looks like one."""

    has_graph: bool
    inputs: tuple[WireValue, ...]
    outputs: tuple[WireValue, ...]
    initializers: frozenset[str]
    has_branches: bool  # nodes that decide what runs, in the graph itself
    texts: dict[int, str]  # of the model, by number of the field
    graph_texts: dict[int, str]
    version: int
    properties: dict[str, str]


def read_wire(model: str | os.PathLike[str] | bytes) -> WireModel:
    """The model's interface. WireError if the bytes are no protobuf; OSError if the file cannot be read."""
    if isinstance(model, bytes):
        return _model(model)
    with open(model, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return _model(b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            return _model(whole)


_Field: TypeAlias = tuple[int, int, int, int]  # number, value, and where its content starts and ends


def _model(data: ModelBytes) -> WireModel:
    texts: dict[int, str] = {}
    version = 0
    properties: dict[str, str] = {}
    graphs: list[tuple[int, int]] = []
    for number, value, start, end in _fields(data, 0, len(data)):
        if number in (2, 3, 4, 6):
            texts[number] = _text(data, start, end)
        elif number == 5:
            version = _signed(value)
        elif number == 7:
            graphs.append((start, end))
        elif number == 14:
            pair = {n: _text(data, a, b) for n, _, a, b in _fields(data, start, end)}
            properties[pair.get(1, "")] = pair.get(2, "")
    inputs: list[WireValue] = []
    outputs: list[WireValue] = []
    initializers: set[str] = set()
    has_branches = False
    graph_texts: dict[int, str] = {}
    for graph_start, graph_end in graphs:
        for number, _, start, end in _fields(data, graph_start, graph_end):
            if number == 1:
                has_branches = has_branches or _name(data, start, end, (4,)) in _BRANCHES
            elif number in (2, 10):
                graph_texts[number] = _text(data, start, end)
            elif number == 5:
                initializers.add(_name(data, start, end, (8,)))
            elif number == 11:
                inputs.append(_value(data, start, end))
            elif number == 12:
                outputs.append(_value(data, start, end))
            elif number == 15:  # a sparse one has the name of its values
                initializers.add(_name(data, start, end, (1, 8)))
    return WireModel(
        bool(graphs),
        tuple(inputs),
        tuple(outputs),
        frozenset(initializers),
        has_branches,
        texts,
        graph_texts,
        version,
        properties,
    )


def _name(data: ModelBytes, start: int, end: int, path: Sequence[int]) -> str:
    found = ""
    for number, _, a, b in _fields(data, start, end):
        if number == path[0]:
            found = _text(data, a, b) if len(path) == 1 else _name(data, a, b, path[1:])
    return found


def _value(data: ModelBytes, start: int, end: int) -> WireValue:
    name, word = "", "tensor(undefined)"
    dims: tuple[WireDim, ...] | None = None
    for number, _, a, b in _fields(data, start, end):
        if number == 1:
            name = _text(data, a, b)
        elif number == 2:
            word, dims = _type(data, a, b)
    return WireValue(name, word, dims)


def _type(data: ModelBytes, start: int, end: int, depth: int = 0) -> tuple[str, tuple[WireDim, ...] | None]:
    """As ONNX Runtime writes it, and the dimensions of a tensor, or of the tensor that an optional may hold."""
    if depth > _NESTING:
        raise WireError(f"types are nested over {_NESTING} deep")
    for number, _, a, b in _fields(data, start, end):
        if number in (1, 8):
            element, dims = _tensor(data, a, b)
            word = tensor_word(element)
            return (word if number == 1 else f"sparse_{word}"), dims
        if number == 4:
            return f"seq({_inner(data, a, b, 1, depth)[0]})", None
        if number == 9:
            word, dims = _inner(data, a, b, 1, depth)
            return f"optional({word})", dims
        if number == 5:
            keys = [v for n, v, _, _ in _fields(data, a, b) if n == 1]
            key = tensor_word(keys[-1] if keys else 0)
            return f"map({key[len('tensor(') : -1]},{_inner(data, a, b, 2, depth)[0]})", None
    return "tensor(undefined)", None


def _inner(
    data: ModelBytes, start: int, end: int, wanted: int, depth: int
) -> tuple[str, tuple[WireDim, ...] | None]:
    found: tuple[str, tuple[WireDim, ...] | None] = ("tensor(undefined)", None)
    for number, _, a, b in _fields(data, start, end):
        if number == wanted:
            found = _type(data, a, b, depth + 1)
    return found


def _tensor(data: ModelBytes, start: int, end: int) -> tuple[int, tuple[WireDim, ...] | None]:
    element = 0
    dims: tuple[WireDim, ...] | None = None
    for number, value, a, b in _fields(data, start, end):
        if number == 1:
            element = value
        elif number == 2:
            dims = tuple(_dim(data, c, d) for n, _, c, d in _fields(data, a, b) if n == 1)
    return element, dims


def _dim(data: ModelBytes, start: int, end: int) -> WireDim:
    extent: int | None = None
    name = denotation = ""
    for number, value, a, b in _fields(data, start, end):
        if number == 1:
            extent, name = _signed(value), ""
        elif number == 2:
            extent, name = None, _text(data, a, b)
        elif number == 3:
            denotation = _text(data, a, b)
    return WireDim(extent, name, denotation)


def _text(data: ModelBytes, start: int, end: int) -> str:
    return bytes(data[start:end]).decode("utf-8", "replace")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: ModelBytes, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message. Numbers have a value, the others a content."""
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError(f"a field without a number at byte {at}")
        if kind == 0:
            value, at = _varint(data, at, end)
            yield number, value, at, at
            continue
        if kind == 2:
            size, at = _varint(data, at, end)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise WireError(f"a field of an unknown kind at byte {at}")
        if size > end - at:
            raise WireError(f"a field at byte {at} ends beyond its message")
        yield number, 0, at, at + size
        at += size


def _varint(data: ModelBytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), at
    raise WireError(f"a number at byte {at} does not end")
