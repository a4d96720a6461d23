"""Compiled programs as `.tw` files.

    header     magic, format version, size and SHA-256 of the manifest
    manifest   JSON: what the program needs and does; place, size and SHA-256 of each section of code; place, size and
               CRC-32s of the weights (`runtime.pieces`)
    sections   the driver, the objects, what plugins compiled, and last the weights, which start on a page so that they
               can be mapped

All digests and checksums are verified before anything is used. They guard against damage, not against malice: a
program is native code, and whoever can write the file decides what it does.
"""

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Generator, Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.runtime.machine import check_machine
from tilewright.runtime.manifest import (
    Entry,
    Json,
    manifest_from_json,
    manifest_to_json,
    program_from_json,
    program_to_json,
    region_from_json,
    region_to_json,
)
from tilewright.runtime.memory import ALIGN, MemoryRegion, round_up
from tilewright.runtime.pieces import are_whole, checksums, read_whole
from tilewright.support.artifact import FORMAT_VERSION, Artifact
from tilewright.support.errors import InternalError, UserError
from tilewright.support.regular_file import open_regular

_MAGIC = b"TILEWRT\0"
_HEADER = struct.Struct("<8sIIQ32s")  # magic, format version, zero, manifest size, manifest digest
_PAGE = 4096
_MAX_MANIFEST = 256 << 20


class _Section(NamedTuple):
    name: str
    offset: int  # from the end of the manifest, rounded up to a page
    size: int
    sha256: str


class _Weights(NamedTuple):
    offset: int
    size: int
    crc32: list[int]  # of each piece


def save(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write the program to `path`: the old file stays until the new one is complete, and on failure altogether."""
    target = Path(path)
    try:
        with _replacing(target) as file:
            for chunk in chunks(artifact):
                _write_all(file, chunk)
    except OSError as error:
        raise UserError(
            f"cannot write the compiled program: {error.strerror or error}",
            where=str(target),
            hint="check free space and permissions; nothing was left behind",
        ) from error


def to_bytes(artifact: Artifact) -> bytes:
    """What `save` writes."""
    return b"".join(chunks(artifact))


def load_artifact(path: str | os.PathLike[str], *, mapped: bool = False) -> Artifact:
    """Read a program. Its constants are read to where a Session wants them, which uses them in place.

    `mapped`: they are views of the mapped file instead.
    """
    try:
        descriptor, info = open_regular(path)
        try:
            if not mapped:
                return _decode(_OpenFile(descriptor, info.st_size))
            view = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if info.st_size else b""
            return _decode(_Memory(memoryview(view)))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UserError(
            f"cannot read the compiled program: {error.strerror or error}", where=str(path)
        ) from error
    except UserError as error:
        raise UserError(error.message, where=os.fspath(path), hint=error.hint) from None


def from_bytes(data: bytes | memoryview, *, where: str = "program") -> Artifact:
    """The inverse of `to_bytes`. The constants are read-only views of `data`."""
    try:
        return _decode(_Memory(memoryview(data)))
    except UserError as error:
        raise UserError(error.message, where=where, hint=error.hint) from None


# Writing


def chunks(artifact: Artifact) -> Iterator[bytes | memoryview]:
    """What `save` writes, in pieces: the weights are not copied."""
    constants: list[Json] = []
    weights: list[bytes | memoryview] = []
    at = 0
    for array in artifact.constants:
        name = array.dtype.name
        if numpy_dtype(name) != array.dtype:
            raise InternalError(f"a constant has dtype {array.dtype!r}, which a file cannot hold")
        constants.append([name, list(array.shape), at])
        weights.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        padding = -array.nbytes % ALIGN
        weights.append(bytes(padding))
        at += array.nbytes + padding
    codes = [("driver", artifact.driver), *((f"object {i}", code) for i, code in enumerate(artifact.objects))]
    for region in artifact.regions:
        codes += [(f"code of {region.key}", region.blob), (f"model of {region.key}", region.model)]
    sections: list[_Section] = []
    offset = 0
    for name, code in codes:
        sections.append(_Section(name, offset, len(code), hashlib.sha256(code).hexdigest()))
        offset = round_up(offset + len(code), _PAGE)
    last = _Weights(offset, at, checksums(weights))
    text = json.dumps(
        {
            "manifest": manifest_to_json(artifact.manifest),
            "arena_bytes": artifact.arena_bytes,
            "program": program_to_json(artifact.program),
            "constants": constants,
            "regions": [region_to_json(r) for r in artifact.regions],
            "sections": [list(s) for s in sections],
            "weights": list(last),
        },
        separators=(",", ":"),
    ).encode()
    yield _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, len(text), hashlib.sha256(text).digest())
    yield text
    end = _HEADER.size + len(text)
    for section, (_, code) in zip(sections, codes, strict=True):
        start = _base(len(text)) + section.offset
        yield bytes(start - end)
        yield code
        end = start + section.size
    yield bytes(_base(len(text)) + last.offset - end)
    yield from weights


def _base(manifest_bytes: int) -> int:
    """Where the sections start."""
    return round_up(_HEADER.size + manifest_bytes, _PAGE)


@contextlib.contextmanager
def _replacing(target: Path) -> Generator[int]:
    """A file descriptor whose contents become `target` if all goes well, in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:200]}.", suffix=".partial", dir=target.parent)
    try:
        try:
            yield handle
            os.fchmod(handle, 0o666 & ~_umask())
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power cut
    finally:
        os.close(folder)


def _umask() -> int:
    """The process's umask, which can only be read by setting it: Linux shows it without."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def _write_all(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


# Reading


def _damaged(why: str) -> UserError:
    return UserError(
        f"this is not a complete compiled program: {why}", hint="copy the file again, or compile again"
    )


class _Memory:
    """A file in memory or mapped: what is read are views."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, size: int) -> memoryview:
        return self._data[start : start + size]

    def weights(self, start: int, size: int, sums: list[int]) -> memoryview | None:
        """None if they are damaged."""
        view = self.read(start, size)
        return view if are_whole(view, sums) else None


class _OpenFile:
    """A file on disk: weights are read to where they will be used, in huge pages."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self.size = size

    def read(self, start: int, size: int) -> memoryview:
        return memoryview(os.pread(self._file, size, start))

    def weights(self, start: int, size: int, sums: list[int]) -> memoryview | None:
        view = MemoryRegion(size, zeroed=False).array[:size].data
        return view.toreadonly() if read_whole(self._file, start, view, sums) else None


def _decode(source: _Memory | _OpenFile) -> Artifact:
    header = source.read(0, _HEADER.size)
    if len(header) < _HEADER.size or bytes(header[: len(_MAGIC)]) != _MAGIC:
        raise _damaged("it does not start like a .tw file")
    _, version, _, size, digest = _HEADER.unpack(header)
    if version != FORMAT_VERSION:
        age = "a newer" if version > FORMAT_VERSION else "an older"
        raise UserError(
            f"the file has format {version}, of {age} version; this one reads format {FORMAT_VERSION}",
            hint="compile the model again with the version that runs it",
        )
    if size > min(_MAX_MANIFEST, source.size - _HEADER.size):
        raise _damaged("its manifest is cut off")
    text = bytes(source.read(_HEADER.size, size))
    if hashlib.sha256(text).digest() != digest:
        raise _damaged("the digest of its manifest is wrong")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged("its manifest is not JSON") from None
    manifest, arena, program, constants, regions, sections, weights = Entry(value, "manifest").record(
        "manifest", "arena_bytes", "program", "constants", "regions", "sections", "weights"
    )
    facts = manifest_from_json(manifest, version)
    check_machine(facts)
    codes = [_code(source, s, _base(size)) for s in sections.items()]
    parts = regions.items()
    objects = len(codes) - 2 * len(parts)
    if objects < 1:
        raise sections.bad("the driver, the objects, and two for each region")
    memory = _weights(source, weights, _base(size))
    arrays = tuple(_constant(c, memory) for c in constants.items())
    return Artifact(
        facts,
        codes[0],
        tuple(codes[1:objects]),
        arrays,
        arena.count(),
        program_from_json(program, {d.name: d for d in facts.dims}),
        tuple(
            region_from_json(entry, codes[objects + 2 * i], codes[objects + 2 * i + 1], len(arrays))
            for i, entry in enumerate(parts)
        ),
    )


def _code(source: _Memory | _OpenFile, entry: Entry, base: int) -> bytes:
    name, offset, size, digest = entry.items(4)
    start = base + offset.count()
    if start + size.count() > source.size:
        raise _damaged(f"{name.text()} is cut off")
    code = bytes(source.read(start, size.count()))
    if hashlib.sha256(code).hexdigest() != digest.text():
        raise _damaged(f"the digest of {name.text()} is wrong")
    return code


def _weights(source: _Memory | _OpenFile, entry: Entry, base: int) -> memoryview:
    offset, size, sums = entry.items(3)
    start = base + offset.count()
    if start + size.count() > source.size:
        raise _damaged("the weights are cut off")
    memory = source.weights(start, size.count(), list(sums.counts()))
    if memory is None:
        raise _damaged("a checksum of the weights is wrong")
    return memory


def _constant(entry: Entry, weights: memoryview) -> NDArray[np.generic]:
    name, dims, at = entry.items(3)
    dtype, shape = numpy_dtype(name.text()), dims.counts()
    nbytes = dtype.itemsize * prod(shape)
    if at.count() % ALIGN or at.count() + nbytes > len(weights):
        raise entry.bad("inside of the weights")
    return np.frombuffer(weights, np.uint8, nbytes, at.count()).view(dtype).reshape(shape)
