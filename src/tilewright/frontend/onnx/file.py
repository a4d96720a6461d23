"""Reading an ONNX file that nobody vouches for.

The file is hostile data: its size, the number and nesting of its nodes, and the bytes of its tensors are limited
before anything is allocated for them. External tensor data is read only from regular files inside the model's folder;
links of either kind and paths that leave the folder are refused. ONNX's own checker, shape inference and version
converter are native code that crashes on malformed models, so none of it runs here.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import IO, Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from tilewright.frontend.onnx.held_model import HeldModel
from tilewright.frontend.onnx.weights import StoredWeights, cut_weights
from tilewright.ir.dtype import DType
from tilewright.ops.opdef import ONNX_DTYPES
from tilewright.support.arrays import Array
from tilewright.support.errors import UserError
from tilewright.support.regular_file import open_regular


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model may ask for."""

    file_bytes: int = 2**31 - 1  # protobuf cannot hold more; larger weights are external data
    tensor_bytes: int = 1 << 36  # one tensor, stored or computed
    nodes: int = 200_000  # subgraphs included
    nesting: int = 16  # subgraphs within subgraphs
    rank: int = 32
    operands: int = 64  # of one node; a sum of n is an expression n deep. Concatenations may have any number.


LIMITS = ModelLimits()


class OverLimit(UserError):
    """The model asks for more than it may."""


def read_model(
    source: str | Path | bytes | ModelProto | HeldModel, limits: ModelLimits = LIMITS
) -> "tuple[ModelProto, TensorReader]":
    """The parsed model, its structure checked against the limits, and the reader of its tensors, to be closed."""
    folder: Path | None = None
    weights = StoredWeights()
    try:
        match source:
            case ModelProto():
                model, where = source, "the given ModelProto"
            case HeldModel():
                model, where = source.proto, "the given model"
                weights = StoredWeights(held=source.weights)
            case bytes():
                model, where = _parse(source, "the given bytes", limits), "the given bytes"
            case _:
                path = Path(source)
                data, weights = _read(path, limits)
                model, where = _parse(data, str(path), limits), str(path)
                folder = path.absolute().parent
        if not model.HasField("graph") or model.ir_version <= 0:
            raise UserError(
                f"{where} is not an ONNX model: it has no graph", hint="is it the file you meant?"
            )
        _check_structure(model, limits)
    except BaseException:
        weights.close()
        raise
    return model, TensorReader(folder, limits, weights)


def check_tensor_bytes(shape: Sequence[int], dtype: DType, limits: ModelLimits = LIMITS) -> None:
    """UserError if a tensor of this type is too large or its shape is no shape."""
    if len(shape) > limits.rank:
        raise OverLimit(f"a tensor of {len(shape)} axes is over the limit of {limits.rank}")
    if any(n < 0 for n in shape):
        raise UserError(f"a tensor cannot have the shape {list(shape)}")
    size = prod(shape) * dtype.bytes
    if size > limits.tensor_bytes:
        raise OverLimit(
            f"a tensor of type {dtype.value}{list(shape)} takes {size} bytes: the limit is {limits.tensor_bytes}"
        )


# -------------------------------------------------------------------------------------------------- the file


def _opened(path: Path, flags: int = 0) -> tuple[IO[bytes], os.stat_result]:
    """A regular file, open for reading, and what is known of it."""
    try:
        descriptor, info = open_regular(path, flags)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from e
    return os.fdopen(descriptor, "rb"), info


def _read(path: Path, limits: ModelLimits) -> tuple[bytes, StoredWeights]:
    """The bytes to parse, and large weights that were left in the file."""
    file, info = _opened(path)
    kept = False
    try:
        if info.st_size > limits.file_bytes:
            raise UserError(
                f"{path} has {info.st_size} bytes: the limit is {limits.file_bytes}",
                hint="store the weights as external data next to the model",
            )
        cut = cut_weights(file, info.st_size)
        kept = cut is not None
        return cut or (file.read(info.st_size), StoredWeights())
    finally:
        if not kept:
            file.close()


def _parse(data: bytes, where: str, limits: ModelLimits) -> ModelProto:
    if len(data) > limits.file_bytes:
        raise UserError(f"{where}: {len(data)} bytes, the limit is {limits.file_bytes}")
    if data.startswith(b"version https://git-lfs"):
        raise UserError(f"{where} is a Git LFS pointer, not the model itself", hint="run `git lfs pull`")
    try:
        return ModelProto.FromString(data)
    except DecodeError as e:
        raise UserError(
            f"{where} is not an ONNX model, or is cut off: {e}",
            hint="check the file's size and download it again",
        ) from e


def _check_structure(model: ModelProto, limits: ModelLimits) -> None:
    """Count nodes and depth before anything walks the graph; without recursion."""
    count = 0
    stack: list[tuple[Sequence[NodeProto], int]] = [
        (model.graph.node, 0),
        *((f.node, 0) for f in model.functions),
    ]
    while stack:
        nodes, depth = stack.pop()
        count += len(nodes)
        if count > limits.nodes:
            raise UserError(f"the model has over {limits.nodes} nodes, which is the limit")
        if depth > limits.nesting:
            raise UserError(f"the model nests subgraphs over {limits.nesting} deep, which is the limit")
        stack.extend((graph.node, depth + 1) for graph in _subgraphs(nodes))


def _subgraphs(nodes: Sequence[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                yield a.g
            elif a.type == AttributeProto.GRAPHS:
                yield from a.graphs


# -------------------------------------------------------------------------------------------------- tensors

# Which repeated field holds the elements of a type, if `raw_data` does not; half floats are bit patterns there.
_TYPED_FIELDS: dict[DType, tuple[str, np.dtype]] = {
    DType.F32: ("float_data", np.dtype(np.float32)),
    DType.F64: ("double_data", np.dtype(np.float64)),
    DType.I64: ("int64_data", np.dtype(np.int64)),
    DType.U64: ("uint64_data", np.dtype(np.uint64)),
    DType.U32: ("uint64_data", np.dtype(np.uint64)),
    **{
        d: ("int32_data", np.dtype(np.int32))
        for d in (DType.BOOL, DType.I8, DType.I16, DType.I32, DType.U8, DType.U16, DType.F16, DType.BF16)
    },
}


# Elements that only the host computes with, by ONNX's number. The short ones are packed in files, the first element
# in the lowest bits.
HOST_TYPES: Mapping[int, np.dtype[Any]] = {
    8: np.dtype(object),  # strings
    14: np.dtype(np.complex64),
    15: np.dtype(np.complex128),
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
}
_PACKED_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}


class TensorReader:
    """Turns TensorProtos into arrays. `raw_data` is not copied again once protobuf has handed it out, and read from
    the file if it was left there.
    """

    def __init__(self, folder: Path | None, limits: ModelLimits, weights: StoredWeights) -> None:
        self._folder, self._limits, self._weights = folder, limits, weights
        self._files: dict[str, IO[bytes]] = {}

    @property
    def opened(self) -> list[str]:
        """The files with external data that were read, from the model's folder."""
        return list(self._files)

    def read(self, t: TensorProto) -> Array:
        """UserError, without the tensor's name, if it is malformed or of a type we do not have."""
        dtype = ONNX_DTYPES.get(t.data_type)
        shape = tuple(t.dims)
        if dtype is None:
            return self._read_host_type(t, shape)
        check_tensor_bytes(shape, dtype, self._limits)
        if t.HasField("segment"):
            raise UserError("tensors in segments are not supported")
        size = prod(shape)
        if t.data_location == TensorProto.EXTERNAL:
            flat = self._read_external(t, size * dtype.bytes).view(_stored(dtype))
        elif t.HasField("raw_data"):
            raw = t.raw_data
            stored = self._weights.try_read(raw)
            data = np.frombuffer(raw, np.uint8) if stored is None else stored
            if data.size != size * dtype.bytes:
                raise UserError(
                    f"raw data has {data.size} bytes; {dtype.value}{list(shape)} takes {size * dtype.bytes}"
                )
            flat = data.view(_stored(dtype))
        else:
            flat = self._read_typed(t, dtype, size)
        if dtype is DType.BOOL:
            flat = flat != 0  # any other byte would be a bool that is neither true nor false
        return flat.view(dtype.numpy).reshape(shape)

    def read_sparse(self, t: SparseTensorProto) -> Array:
        """A sparse tensor, with its zeros written out."""
        values, indices, shape = self.read(t.values), self.read(t.indices), tuple(t.dims)
        dtype = ONNX_DTYPES.get(t.values.data_type)
        if dtype is None:
            raise UserError(f"sparse tensors of type {type_name(t.values.data_type)} are not supported")
        check_tensor_bytes(shape, dtype, self._limits)
        fits = (
            indices.shape in (values.shape, (*values.shape, len(shape))) and values.ndim == 1 and shape != ()
        )
        if indices.dtype != np.int64 or not fits:
            raise UserError(
                f"sparse tensor {list(shape)}: its indices are {indices.dtype}{list(indices.shape)}"
            )
        extents = np.array(shape if indices.ndim == 2 else [prod(shape)], np.int64)
        positions = indices if indices.ndim == 2 else indices[:, None]
        if np.any(positions < 0) or np.any(positions >= extents):
            raise UserError(f"sparse tensor {list(shape)}: an index is outside of it")
        out = np.zeros(tuple(extents), dtype.numpy)
        out[tuple(positions.T)] = values
        return out.reshape(shape)

    def close(self) -> None:
        self._weights.close()
        for f in self._files.values():
            f.close()
        self._files.clear()

    def _read_typed(self, t: TensorProto, dtype: DType, size: int) -> Array:
        name, stored = _TYPED_FIELDS[dtype]
        flat = np.array(getattr(t, name), dtype=stored)
        if flat.size != size:
            raise UserError(f"{name} has {flat.size} elements; {dtype.value}{list(t.dims)} takes {size}")
        if dtype in (DType.F16, DType.BF16):
            return flat.astype(np.uint16)
        return flat.astype(_stored(dtype), copy=False)

    def _read_host_type(self, t: TensorProto, shape: tuple[int, ...]) -> Array:
        dtype = HOST_TYPES.get(t.data_type)
        if dtype is None:
            raise UserError(f"elements of type {type_name(t.data_type)} are not supported")
        check_tensor_bytes(shape, DType.I8, self._limits)
        size = prod(shape)
        if dtype.kind == "O":
            if len(t.string_data) != size:
                raise UserError(f"string_data has {len(t.string_data)} elements; {list(shape)} takes {size}")
            return np.array([_text(s) for s in t.string_data], object).reshape(shape)
        bits = _PACKED_BITS.get(t.data_type, dtype.itemsize * 8)
        length = (size * bits + 7) // 8
        if t.data_location == TensorProto.EXTERNAL:
            data = self._read_external(t, length)
        elif t.HasField("raw_data"):
            stored = self._weights.try_read(t.raw_data)
            data = np.frombuffer(t.raw_data, np.uint8) if stored is None else stored
        elif dtype.kind == "c":
            field = t.float_data if dtype.itemsize == 8 else t.double_data
            data = np.array(field, dtype.type(0).real.dtype).view(np.uint8)
        else:
            data = np.array(t.int32_data, np.int64).astype(np.uint8)
        if data.size != length:
            raise UserError(f"{data.size} bytes of data; {dtype}{list(shape)} takes {length}")
        if bits < 8:
            shifts = np.arange(0, 8, bits, dtype=np.uint8)
            data = ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:size].astype(np.uint8)
            if (
                "uint" not in dtype.name and "float" not in dtype.name
            ):  # sign extended, as ml_dtypes keeps them
                data = (data.astype(np.int8) << (8 - bits)) >> (8 - bits)
                return data.astype(dtype).reshape(shape)
        return data.view(dtype).reshape(shape)

    def _read_external(self, t: TensorProto, size: int) -> Array:
        entries = {e.key: e.value for e in t.external_data}
        location = entries.get("location", "")
        numbers = {
            key: entries.get(key, default) for key, default in (("offset", "0"), ("length", str(size)))
        }
        for key, text in numbers.items():
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise UserError(f"external data: {key} is {text[:40]!r}, not a number")
        offset, length = int(numbers["offset"]), int(numbers["length"])
        if length != size:
            raise UserError(f"external data: length is {length} bytes; the tensor takes {size}")
        file = self._files.get(location)
        if file is None:
            file = self._files[location] = _open_inside(self._folder, location)
        available = os.fstat(file.fileno()).st_size
        if offset + length > available:
            raise UserError(
                f"external data: bytes {offset} to {offset + length} of {location!r}, which has {available}"
            )
        # Read, not mapped: a file that shrinks under a mapping would kill the process.
        file.seek(offset)
        out = np.fromfile(file, np.uint8, length)
        if out.size != length:
            raise UserError(f"external data: {location!r} was cut off while it was read")
        return out


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UserError(f"a string is not UTF-8 text: {data[:40]!r}") from e


def type_name(data_type: int) -> str:
    """ONNX's name of an element type."""
    known = {value: name for name, value in TensorProto.DataType.items()}
    return known.get(data_type, f"number {data_type}")


def _stored(dtype: DType) -> np.dtype:
    """How elements lie in a file: little endian; bool as bytes, bfloat16 as bits."""
    if dtype is DType.BOOL:
        return np.dtype(np.uint8)
    return np.dtype("<u2") if dtype is DType.BF16 else dtype.numpy.newbyteorder("<")


def _open_inside(folder: Path | None, location: str) -> IO[bytes]:
    """Open a file of external data below `folder`, if it is a plain file on a plain path."""
    what = f"external data {location!r}"
    if folder is None:
        raise UserError(f"{what}: the model was not read from a file", hint="pass the path of the model")
    parts = PurePosixPath(location).parts
    if not parts or location.startswith("/") or "\\" in location or "\0" in location or ":" in location:
        raise UserError(f"{what} is not a path inside the model's folder")
    if any(part == ".." for part in parts):
        raise UserError(f"{what} leaves the model's folder")
    path = folder
    try:
        for part in parts:
            path = path / part
            if stat.S_ISLNK(path.lstat().st_mode):
                raise UserError(
                    f"{what}: {path.name!r} is a symbolic link", hint="replace it by a copy of the file"
                )
        before = path.lstat()
    except OSError as e:
        raise UserError(f"{what} cannot be read: {e.strerror or e}") from e
    file, info = _opened(path, os.O_NOFOLLOW)
    problem = None
    if (info.st_dev, info.st_ino) != (before.st_dev, before.st_ino):
        problem = "changed while it was opened"  # somebody swapped what was looked at for something else
    elif info.st_nlink > 1:
        problem = "is a hard link: its content may belong to somebody else"
    if problem is not None:
        file.close()
        raise UserError(f"{what} {problem}", hint="replace it by a copy of the file")
    return file
