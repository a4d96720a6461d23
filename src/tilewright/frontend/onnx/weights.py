"""Large weights of an ONNX file, read past protobuf.

Protobuf parses a file from memory and hands out tensors as copies: the weights would be in memory three times over, and
most of an import would be page faults. So the file is scanned first. Raw data of large tensors is cut out of the bytes
that protobuf gets to see, a token stands in its place, and it is read from the file when the tensor is asked for.

    initializer { name: "w"  raw_data: <94 MB> }    →    initializer { name: "w"  raw_data: <token> }

Tokens start with random bytes, so no model can contain one. Only the nesting of messages is looked at. What a scan does
not understand (damage, groups, too many fields) it leaves to protobuf, which then gets the whole file.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.support.arrays import Array
from tilewright.support.errors import UserError

LARGE = 1 << 16  # bytes; what is smaller stays where it is
_MAX_FIELDS = 500_000  # a file of many tiny fields would take long here; protobuf is quicker
_BLOCK = 1 << 14
_ALIGN = 64
_BYTES = 2  # protobuf's wire type of strings and messages

_Tree: TypeAlias = "dict[int, _Tree]"
_RAW_DATA: _Tree = {9: {}}  # TensorProto.raw_data
_PATHS: _Tree = {
    7: {5: _RAW_DATA, 1: {5: {5: _RAW_DATA}}}
}  # ModelProto.graph: .initializer, .node.attribute.t


@dataclass(slots=True)
class StoredWeights:
    """Where the data of tensors is, by token: in an open file, or `held` by whoever gave the model.

    What is in the file is read into one array, of which tensors are slices: numpy asks for huge pages for large
    arrays only.
    """

    file: IO[bytes] | None = None
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    held: Mapping[bytes, Array] = field(default_factory=dict[bytes, Array])
    _memory: NDArray[np.uint8] | None = None
    _used: int = 0

    def try_read(self, raw: bytes) -> Array | None:
        """The bytes that `raw` is the token of; None if it is not a token."""
        if raw in self.held:
            return np.ascontiguousarray(self.held[raw]).reshape(-1).view(np.uint8)
        place = self.places.get(raw)
        if place is None or self.file is None:
            return None
        offset, size = place
        out = self._allocate(size)
        done = 0
        while done < size:
            got = os.preadv(self.file.fileno(), [out[done:].data], offset + done)
            if got == 0:
                raise UserError("the file was cut off while it was read")
            done += got
        out.flags.writeable = False
        return out

    def _allocate(self, size: int) -> NDArray[np.uint8]:
        room = -(-size // _ALIGN) * _ALIGN
        if self._memory is None or self._used + room > self._memory.size:  # full if a tensor is read twice
            whole = sum(-(-n // _ALIGN) * _ALIGN for _, n in self.places.values())
            raw = np.empty(max(whole, room) + _ALIGN, np.uint8)
            start = -raw.ctypes.data % _ALIGN
            self._memory, self._used = raw[start : start + max(whole, room)], 0
        out = self._memory[self._used : self._used + size]
        self._used += room
        return out

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _Unusual(Exception):
    """Something that is better left to protobuf."""


def cut_weights(file: IO[bytes], size: int) -> tuple[bytes, StoredWeights] | None:
    """The file without large weights, and where those are; None if the whole file should be parsed."""
    scan = _Scan(file.fileno(), size)
    try:
        parts = scan.message(0, size, _PATHS)
        if parts is None:
            return None
        return b"".join(scan.read(p) for p in parts), StoredWeights(file, scan.places)
    except _Unusual:
        return None


_Part: TypeAlias = bytes | tuple[int, int]  # new bytes, or a range of the file


class _Scan:
    def __init__(self, file: int, size: int) -> None:
        self._file, self._size = file, size
        self._start, self._block = 0, b""
        self._fields = 0
        self._secret = os.urandom(16)
        self.places: dict[bytes, tuple[int, int]] = {}

    def message(self, start: int, end: int, tree: _Tree) -> list[_Part] | None:
        """The message with large weights replaced; None if it has none."""
        out: list[_Part] = []
        copied = start
        for number, head, body, after in self._walk(start, end):
            below = tree.get(number)
            if below is None or after - body < LARGE:
                continue
            inner = self.message(body, after, below) if below else [self._token(body, after)]
            if inner is None:
                continue
            out += [(copied, head), _varint(number << 3 | _BYTES), _varint(sum(map(_length, inner))), *inner]
            copied = after
        return [*out, (copied, end)] if out else None

    def read(self, part: _Part) -> bytes:
        if isinstance(part, bytes):
            return part
        start, end = part
        data = os.pread(self._file, end - start, start)
        if len(data) < end - start:
            raise _Unusual
        return data

    def _token(self, body: int, after: int) -> bytes:
        token = self._secret + len(self.places).to_bytes(8, "little")
        self.places[token] = (body, after - body)
        return token

    def _walk(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Fields that are strings or messages: number, where they start, where their content starts and ends."""
        at = start
        while at < end:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                raise _Unusual
            head = at
            tag, at = self._read_varint(at)
            match tag & 7:
                case 0:
                    _, at = self._read_varint(at)
                case 1:
                    at += 8
                case 2:
                    size, body = self._read_varint(at)
                    at = body + size
                    if at <= end:
                        yield tag >> 3, head, body, at
                case 5:
                    at += 4
                case _:
                    raise _Unusual
            if at > end:
                raise _Unusual

    def _read_varint(self, at: int) -> tuple[int, int]:
        i = at - self._start
        if i < 0 or i + 10 > len(self._block):
            self._start, i = at, 0
            self._block = os.pread(self._file, _BLOCK, at)
        block, value = self._block, 0
        for shift in range(0, 70, 7):
            if i >= len(block):
                raise _Unusual
            byte = block[i]
            i += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, self._start + i
        raise _Unusual


def _length(part: _Part) -> int:
    return len(part) if isinstance(part, bytes) else part[1] - part[0]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
