"""Compiled programs as `.tw` files.

    header     magic, format version, size and SHA-256 of the manifest
    manifest   JSON: what the program needs and does, and place, size and SHA-256 of each section
    sections   the driver, the objects, and last the weights, which start on a page so that they can be mapped

All digests are checked before anything is used. They guard against damage, not against malice: a program is native
code, and whoever can write the file decides what it does.
"""

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Generator, Iterator, Sequence
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
)
from tilewright.runtime.memory import ALIGN, round_up
from tilewright.support.artifact import FORMAT_VERSION, Artifact
from tilewright.support.errors import InternalError, UserError

_MAGIC = b"TILEWRT\0"
_HEADER = struct.Struct("<8sIIQ32s")  # magic, format version, zero, manifest size, manifest digest
_PAGE = 4096
_MAX_MANIFEST = 256 << 20


class _Section(NamedTuple):
    name: str
    offset: int  # from the end of the manifest, rounded up to a page
    size: int
    sha256: str


def save(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write the program to `path`: the old file stays until the new one is complete, and on failure altogether."""
    target = Path(path)
    try:
        with _replacing(target) as file:
            for chunk in _chunks(artifact):
                _write_all(file, chunk)
    except OSError as error:
        raise UserError(
            f"cannot write the compiled program: {error.strerror or error}",
            where=str(target),
            hint="check free space and permissions; nothing was left behind",
        ) from error


def to_bytes(artifact: Artifact) -> bytes:
    """What `save` writes."""
    return b"".join(_chunks(artifact))


def load(path: str | os.PathLike[str], *, mapped: bool = False) -> Artifact:
    """Read a program. `mapped`: its constants are views of the mapped file instead of being read into memory."""
    try:
        with open(path, "rb") as file:
            if mapped and os.fstat(file.fileno()).st_size:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            else:
                data = memoryview(file.read())
    except OSError as error:
        raise UserError(
            f"cannot read the compiled program: {error.strerror or error}", where=str(path)
        ) from error
    return from_bytes(data, where=os.fspath(path))


def from_bytes(data: bytes | memoryview, *, where: str = "program") -> Artifact:
    """The inverse of `to_bytes`. The constants are read-only views of `data`."""
    try:
        return _decode(memoryview(data))
    except UserError as error:
        raise UserError(error.message, where=where, hint=error.hint) from None


# Writing


def _chunks(artifact: Artifact) -> Iterator[bytes | memoryview]:
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
    bodies: list[tuple[str, Sequence[bytes | memoryview]]] = [("driver", [artifact.driver])]
    bodies += [(f"object {i}", [code]) for i, code in enumerate(artifact.objects)]
    bodies.append(("weights", weights))
    sections: list[_Section] = []
    offset = 0
    for name, parts in bodies:
        digest, size = hashlib.sha256(), 0
        for part in parts:
            digest.update(part)
            size += len(part)
        sections.append(_Section(name, offset, size, digest.hexdigest()))
        offset = round_up(offset + size, _PAGE)
    text = json.dumps(
        {
            "manifest": manifest_to_json(artifact.manifest),
            "arena_bytes": artifact.arena_bytes,
            "program": program_to_json(artifact.program),
            "constants": constants,
            "sections": [list(s) for s in sections],
        },
        separators=(",", ":"),
    ).encode()
    yield _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, len(text), hashlib.sha256(text).digest())
    yield text
    end = _HEADER.size + len(text)
    for section, (_, parts) in zip(sections, bodies, strict=True):
        start = _base(len(text)) + section.offset
        yield bytes(start - end)
        yield from parts
        end = start + section.size


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
        f"this is not a whole compiled program: {why}", hint="copy the file again, or compile again"
    )


def _decode(data: memoryview) -> Artifact:
    if len(data) < _HEADER.size or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise _damaged("it does not start like a .tw file")
    _, version, _, size, digest = _HEADER.unpack_from(data)
    if version != FORMAT_VERSION:
        age = "a newer" if version > FORMAT_VERSION else "an older"
        raise UserError(
            f"the file has format {version}, of {age} version; this one reads format {FORMAT_VERSION}",
            hint="compile the model again with the version that runs it",
        )
    if size > min(_MAX_MANIFEST, len(data) - _HEADER.size):
        raise _damaged("its manifest is cut off")
    text = bytes(data[_HEADER.size : _HEADER.size + size])
    if hashlib.sha256(text).digest() != digest:
        raise _damaged("the digest of its manifest is wrong")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged("its manifest is not JSON") from None
    manifest, arena, program, constants, sections = Entry(value, "manifest").record(
        "manifest", "arena_bytes", "program", "constants", "sections"
    )
    header = manifest_from_json(manifest, version)
    check_machine(header)
    driver, *objects, weights = _bodies(data, sections, _base(size))
    return Artifact(
        header,
        bytes(driver),
        tuple(bytes(o) for o in objects),
        tuple(_constant(c, weights) for c in constants.items()),
        arena.count(),
        program_from_json(program),
    )


def _bodies(data: memoryview, sections: Entry, base: int) -> list[memoryview]:
    bodies: list[memoryview] = []
    for entry in sections.items():
        name, offset, size, digest = entry.items(4)
        start, end = base + offset.count(), base + offset.count() + size.count()
        if end > len(data):
            raise _damaged(f"{name.text()} is cut off")
        body = data[start:end]
        if hashlib.sha256(body).hexdigest() != digest.text():
            raise _damaged(f"the digest of {name.text()} is wrong")
        bodies.append(body)
    if len(bodies) < 2:
        raise sections.bad("the driver, objects and weights")
    return bodies


def _constant(entry: Entry, weights: memoryview) -> NDArray[np.generic]:
    name, dims, at = entry.items(3)
    dtype, shape = numpy_dtype(name.text()), dims.counts()
    nbytes = dtype.itemsize * prod(shape)
    if at.count() % ALIGN or at.count() + nbytes > len(weights):
        raise entry.bad("inside of the weights")
    return np.frombuffer(weights, np.uint8, nbytes, at.count()).view(dtype).reshape(shape)
