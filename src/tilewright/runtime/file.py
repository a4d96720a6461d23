"""Compiled programs as `.tw` files.

    header     magic, format version, number of large constants, size of the manifest, and the SHA-256 of digests and
               manifest
    digests    the SHA-256 of each large constant, which are its name (`runtime.weights`)
    manifest   JSON: what the program needs and does; place, size and SHA-256 of each section of code; place, size and
               CRC-32s of the small constants together and of each large one (`runtime.pieces`)
    sections   the driver, the objects, what plugins compiled, and last the weights, each large constant and all small
               ones together, which start on a page so that they can be mapped

A program in the cache has its large constants outside, in files that programs share; all else is the same.

All digests and checksums are verified before anything is used. They guard against damage, not against malice: a
program is native code, and whoever can write the file decides what it does. A large constant that the process has
in memory already, by its digest, is not read.
"""

import contextlib
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple, Protocol

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
from tilewright.runtime.memory import ALIGN, memory_for, round_up
from tilewright.runtime.pieces import FileBytes, HeldBytes, are_whole, checksums
from tilewright.runtime.weights import Bytes, bytes_of, digests_of, shared_bytes
from tilewright.support.artifact import FORMAT_VERSION, Artifact
from tilewright.support.errors import InternalError, UserError
from tilewright.support.regular_file import open_regular
from tilewright.support.replacing import replacing, write_all

_MAGIC = b"TILEWRT\0"
_HEADER = struct.Struct("<8sIIQ32s")  # magic, format version, large constants, manifest size, digest
_DIGEST = hashlib.sha256().digest_size
_PAGE = 4096
_MAX_MANIFEST = 256 << 20


class _Section(NamedTuple):
    name: str
    offset: int  # from the end of the manifest, rounded up to a page
    size: int
    sha256: str


class _Weights(NamedTuple):
    """A large constant, or all small ones."""

    offset: int  # as of a section; of no meaning if outside
    size: int
    crc32: list[int]  # of each piece


class BlobStore(Protocol):
    """Where large constants are that are not in their program's file."""

    def opened_blob(self, digest: str) -> AbstractContextManager[int]:
        """A descriptor to read it with. OSError if it is not there."""
        ...

    def discard_blob(self, digest: str) -> None:
        """It is damaged."""
        ...


def save(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write the program to `path`: the old file stays until the new one is complete, and on failure altogether."""
    target = Path(path)
    try:
        with replacing(target) as file:
            for chunk in chunks(artifact):
                write_all(file, chunk)
    except OSError as error:
        raise UserError(
            f"cannot write the compiled program: {error.strerror or error}",
            where=str(target),
            hint="check free space and permissions; nothing was left behind",
        ) from error


def to_bytes(artifact: Artifact) -> bytes:
    """What `save` writes."""
    return b"".join(chunks(artifact))


def load_artifact(
    path: str | os.PathLike[str], *, mapped: bool = False, blobs: BlobStore | None = None
) -> Artifact:
    """Read a program. Its constants are read to where a Session wants them, which uses them in place.

    `mapped`: they are views of the mapped file instead. `blobs` has the large ones of a program of the cache.
    """
    try:
        descriptor, info = open_regular(path)
        try:
            if not mapped:
                return _decode(_OpenFile(descriptor, info.st_size, blobs))
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


def large_constants(path: str | os.PathLike[str]) -> set[str]:
    """The digests of a program's large constants; nothing if it is no program, whatever its version."""
    try:
        descriptor, _ = open_regular(path, os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                return set()
            table = file.read(_DIGEST * _HEADER.unpack(header)[2])
    except OSError:
        return set()
    return {d.hex() for d in _rows(table)}


def _rows(table: bytes) -> list[bytes]:
    return [table[i : i + _DIGEST] for i in range(0, len(table), _DIGEST)]


# Writing


def chunks(artifact: Artifact, *, with_large: bool = True) -> Iterator[bytes | memoryview]:
    """What `save` writes, in pieces: the weights are not copied. Without large constants, they are in `blobs`."""
    constants, small, large = _parted(artifact)
    codes = [("driver", artifact.driver), *((f"object {i}", code) for i, code in enumerate(artifact.objects))]
    for region in artifact.regions:
        codes += [(f"code of {region.key}", region.blob), (f"model of {region.key}", region.model)]
    for n, narrower in enumerate(artifact.narrower):
        codes += [(f"object {i} of program {n}", code) for i, code in enumerate(narrower.objects)]
    sections: list[_Section] = []
    offset = 0
    for name, code in codes:
        sections.append(_Section(name, offset, len(code), hashlib.sha256(code).hexdigest()))
        offset = round_up(offset + len(code), _PAGE)
    placed = [_Weights(offset, sum(map(len, small)), checksums(small))]
    for data in large.values():
        offset = round_up(offset + placed[-1].size, _PAGE) if with_large else 0
        placed.append(_Weights(offset, len(data), checksums([data])))
    text = json.dumps(
        {
            "manifest": manifest_to_json(artifact.manifest),
            "arena_bytes": artifact.arena_bytes,
            "program": program_to_json(artifact.program),
            "constants": constants[0],
            "regions": [region_to_json(r) for r in artifact.regions],
            "narrower": [
                [
                    manifest_to_json(a.manifest),
                    a.arena_bytes,
                    program_to_json(a.program),
                    used,
                    len(a.objects),
                ]
                for a, used in zip(artifact.narrower, constants[1:], strict=True)
            ],
            "sections": [list(s) for s in sections],
            "weights": [list(w) for w in placed],
            "with_large": with_large,
        },
        separators=(",", ":"),
    ).encode()
    table = bytes.fromhex("".join(large))
    digest = hashlib.sha256(table + text).digest()
    yield _HEADER.pack(_MAGIC, FORMAT_VERSION, len(large), len(text), digest)
    yield table
    yield text
    end = _HEADER.size + len(table) + len(text)
    base = round_up(end, _PAGE)
    parts = [(s.offset, [code]) for s, (_, code) in zip(sections, codes, strict=True)]
    weights = [small, *([d] for d in large.values())][: None if with_large else 1]
    parts += [(w.offset, data) for w, data in zip(placed, weights, strict=False)]
    for start, data in parts:
        yield bytes(base + start - end)
        yield from data
        end = base + start + sum(map(len, data))


def blobs(artifact: Artifact) -> dict[str, memoryview]:
    """The large constants by their digests."""
    return _parted(artifact)[2]


def _parted(
    artifact: Artifact,
) -> tuple[list[list[Json]], list[bytes | memoryview], dict[str, memoryview]]:
    """Where each constant is (type, shape, section of weights, place there), of the program and of each that is
    narrower; the bytes of small ones, and large ones by their digests.
    """
    programs = [(a, a.digests or digests_of(a.constants)) for a in (artifact, *artifact.narrower)]
    order = {d: n for n, d in enumerate(dict.fromkeys(d for _, all_ in programs for d in all_ if d), 1)}
    constants: list[list[Json]] = []
    small: list[bytes | memoryview] = []
    large: dict[str, memoryview] = {}
    at = 0
    for program, digests in programs:
        constants.append([])
        for array, digest in zip(program.constants, digests, strict=True):
            name = array.dtype.name
            if numpy_dtype(name) != array.dtype:
                raise InternalError(f"a constant has dtype {array.dtype!r}, which a file cannot hold")
            constants[-1].append([name, list(array.shape), order.get(digest, 0), 0 if digest else at])
            if digest:
                large[digest] = bytes_of(array).data
                continue
            padding = -array.nbytes % ALIGN
            small += [bytes_of(array).data, bytes(padding)]
            at += array.nbytes + padding
    return constants, small, {d: large[d] for d in order}


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

    def weights(self, wanted: "Sequence[_Wanted]") -> list[Bytes]:
        if any(w.is_outside for w in wanted):
            raise _incomplete()
        views = [self.read(w.start, w.size) for w in wanted]
        if not all(are_whole([HeldBytes(v, w.sums) for v, w in zip(views, wanted, strict=True)])):
            raise _damaged("a checksum of the weights is wrong")
        return [np.frombuffer(v, np.uint8) for v in views]


class _OpenFile:
    """A file on disk: weights are read to where they will be used, in huge pages, unless they are in memory already."""

    def __init__(self, file: int, size: int, blobs: BlobStore | None) -> None:
        self._file = file
        self._blobs = blobs
        self.size = size

    def read(self, start: int, size: int) -> memoryview:
        return memoryview(os.pread(self._file, size, start))

    def weights(self, wanted: "Sequence[_Wanted]") -> list[Bytes]:
        found = [shared_bytes(w.digest, w.size) for w in wanted]
        missing = [(i, w) for i, w in enumerate(wanted) if found[i] is None]
        memory = memory_for([w.size for _, w in missing])
        stretches = [
            FileBytes(self._opener(w), w.start, m.data, w.sums)
            for (_, w), m in zip(missing, memory, strict=True)
        ]
        whole = are_whole(stretches)
        for (_, w), is_whole in zip(missing, whole, strict=True):
            if not is_whole and w.is_outside and self._blobs is not None:
                self._blobs.discard_blob(w.digest)
        if not all(whole):
            raise _damaged("a checksum of the weights is wrong")
        read = {i: m for (i, _), m in zip(missing, memory, strict=True)}
        return [read[i] if f is None else f for i, f in enumerate(found)]

    def _opener(self, wanted: "_Wanted") -> Callable[[], AbstractContextManager[int]]:
        if not wanted.is_outside:
            return partial(contextlib.nullcontext, self._file)
        if self._blobs is None:
            raise _incomplete()
        return partial(self._blobs.opened_blob, wanted.digest)


class _Wanted(NamedTuple):
    """Weights to be read. All small ones together have no digest."""

    digest: str
    start: int
    size: int
    sums: list[int]
    is_outside: bool


def _incomplete() -> UserError:
    return UserError(
        "the program is an entry of a cache, whose weights are elsewhere", hint="save the program to a file"
    )


def _decode(source: _Memory | _OpenFile) -> Artifact:
    header = source.read(0, _HEADER.size)
    if len(header) < _HEADER.size or bytes(header[: len(_MAGIC)]) != _MAGIC:
        raise _damaged("it does not start like a .tw file")
    _, version, count, size, digest = _HEADER.unpack(header)
    if version != FORMAT_VERSION:
        age = "a newer" if version > FORMAT_VERSION else "an older"
        raise UserError(
            f"the file has format {version}, of {age} version; this one reads format {FORMAT_VERSION}",
            hint="compile the model again with the version that runs it",
        )
    if count * _DIGEST + size > min(_MAX_MANIFEST, source.size - _HEADER.size):
        raise _damaged("its manifest is cut off")
    text = bytes(source.read(_HEADER.size, count * _DIGEST + size))
    if hashlib.sha256(text).digest() != digest:
        raise _damaged("the digest of its manifest is wrong")
    try:
        value: object = json.loads(text[count * _DIGEST :])
    except (ValueError, RecursionError):
        raise _damaged("its manifest is not JSON") from None
    manifest, arena, program, constants, regions, sections, weights, with_large, narrower = Entry(
        value, "manifest"
    ).record(
        *("manifest", "arena_bytes", "program", "constants"),
        *("regions", "sections", "weights", "with_large", "narrower"),
    )
    facts = manifest_from_json(manifest, version)
    check_machine(facts)
    base = round_up(_HEADER.size + len(text), _PAGE)
    codes = [_code(source, s, base) for s in sections.items()]
    parts, others = regions.items(), [n.items(5) for n in narrower.items()]
    objects = len(codes) - 2 * len(parts) - sum(own.count() for *_, own in others)
    if objects < 1:
        raise sections.bad("the driver, the objects, two for each region, and those of narrower programs")
    digests = ["", *(d.hex() for d in _rows(text[: count * _DIGEST]))]
    memory = _weights(source, weights, digests, base, is_outside=not with_large.flag())
    arrays = tuple(_constant(c, memory) for c in constants.items())
    made: list[Artifact] = []
    at = objects + 2 * len(parts)
    for own_manifest, own_arena, own_program, own_constants, own_objects in others:
        own = manifest_from_json(own_manifest, version)
        end = at + own_objects.count()
        made.append(
            Artifact(
                own,
                codes[0],
                tuple(codes[at:end]),
                tuple(_constant(c, memory) for c in own_constants.items()),
                own_arena.count(),
                program_from_json(own_program, {d.name: d for d in own.dims}),
                (),
                _digests(own_constants, digests),
            )
        )
        at = end
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
        _digests(constants, digests),
        tuple(made),
    )


def _digests(constants: Entry, digests: list[str]) -> tuple[str, ...]:
    """Of each constant; nothing if it is one of the small ones."""
    return tuple(digests[c.items(4)[2].count()] for c in constants.items())


def _code(source: _Memory | _OpenFile, entry: Entry, base: int) -> bytes:
    name, offset, size, digest = entry.items(4)
    start = base + offset.count()
    if start + size.count() > source.size:
        raise _damaged(f"{name.text()} is cut off")
    code = bytes(source.read(start, size.count()))
    if hashlib.sha256(code).hexdigest() != digest.text():
        raise _damaged(f"the digest of {name.text()} is wrong")
    return code


def _weights(
    source: _Memory | _OpenFile, entry: Entry, digests: list[str], base: int, *, is_outside: bool
) -> list[Bytes]:
    """The small constants, and each of the large ones. Nobody may write to them."""
    wanted: list[_Wanted] = []
    for section, digest in zip(entry.items(len(digests)), digests, strict=True):
        offset, size, sums = section.items(3)
        place = (0, True) if digest and is_outside else (base + offset.count(), False)
        wanted.append(_Wanted(digest, place[0], size.count(), list(sums.counts()), place[1]))
        if not wanted[-1].is_outside and wanted[-1].start + wanted[-1].size > source.size:
            raise _damaged("the weights are cut off")
    memory = source.weights(wanted)
    for array in memory:
        array.flags.writeable = False
    return memory


def _constant(entry: Entry, weights: list[Bytes]) -> NDArray[np.generic]:
    name, dims, section, at = entry.items(4)
    dtype, shape = numpy_dtype(name.text()), dims.counts()
    nbytes = dtype.itemsize * prod(shape)
    if section.count() >= len(weights):
        raise section.bad("a section of weights")
    memory = weights[section.count()]
    is_whole = nbytes == memory.nbytes and not at.count() if section.count() else True
    if not is_whole or at.count() % ALIGN or at.count() + nbytes > memory.nbytes:
        raise entry.bad("inside of the weights")
    return memory[at.count() : at.count() + nbytes].view(dtype).reshape(shape)
