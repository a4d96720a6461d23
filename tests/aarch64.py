"""Running kernels for aarch64 on another machine: a static program of a few hundred bytes around them, under qemu-user.

There is no libc and no linker for aarch64 in our dependencies, and none is needed: the program is one segment that
holds start code, the kernels' objects with their relocations applied, and the arrays. It calls the kernels, writes the
arrays to its standard output and exits.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.kernel import kernel_ir, parts
from tilewright.codegen.legalize import legalize
from tilewright.codegen.objects import compile_object
from tilewright.ir.expr import Buffer
from tilewright.search.default import schedule_func
from tilewright.support.arrays import Array
from tilewright.target.target import AARCH64, Target
from tilewright.tir.func import Call, Func, Module
from tilewright.tir.interp import poisoned_array
from tilewright.tir.pipeline import lower_func

QEMU = shutil.which("qemu-aarch64")
REQUIRED = bool(os.environ.get("TILEWRIGHT_REQUIRE_QEMU"))  # where it is an error that tests cannot run
needs_qemu = pytest.mark.skipif(
    QEMU is None and not REQUIRED, reason="qemu-aarch64 is not installed (Debian: apt-get install qemu-user)"
)

_BASE = 0x400000
_ALIGN = 64
_ROOM = 0x8000  # for headers and start code


def run_aarch64(func: Func, inputs: Sequence[Array], folder: Path, target: Target = AARCH64) -> list[Array]:
    """The outputs of a scheduled Func, compiled for aarch64."""
    phases, shared = lower_func(func, legalize(target))
    given = [p for p in func.params if p not in func.outputs]
    arrays = dict(zip(given, inputs, strict=True)) | {b: poisoned_array(b) for b in (*func.outputs, *shared)}
    program = Program(arrays)
    for phase in phases:
        kernel = phase.func
        program.add(compile_object(kernel_ir(kernel), target), kernel.name, kernel.params, parts(kernel))
    return program.run(folder / f"{func.name}.elf", func.outputs, _cpu(target))


def run_module_aarch64(
    module: Module, inputs: Mapping[str, Array], folder: Path, target: Target = AARCH64
) -> tuple[list[Array], list[Func]]:
    """The outputs of a whole program that is a sequence of calls, each Func with the schedule that is chosen for it;
    and these Funcs.
    """
    constants = frozenset(c.buffer.name for c in module.constants)
    arrays: dict[Buffer, Array] = {c.buffer: np.asarray(c.value) for c in module.constants}
    arrays |= {b: inputs[b.name] for b in module.inputs}
    arrays |= {b: poisoned_array(b) for b in (*module.temps, *module.outputs)}
    funcs: list[Func] = []
    code: list[tuple[Func, list[Buffer]]] = []
    for call in module.program:
        assert isinstance(call, Call), "only calls of Funcs run here"
        funcs.append(schedule_func(module.func(call.func), target, constants).func)
        phases, shared = lower_func(funcs[-1], legalize(target))
        arrays |= {b: poisoned_array(b) for b in shared}
        place = dict(zip(funcs[-1].params, call.args, strict=True))
        code += [(p.func, [place.get(b, b) for b in p.func.params]) for p in phases]
    program = Program(arrays)
    for kernel, buffers in code:
        program.add(compile_object(kernel_ir(kernel), target), kernel.name, buffers, parts(kernel))
    return program.run(folder / "module.elf", module.outputs, _cpu(target)), funcs


def _cpu(target: Target) -> str:
    """The processor with all features; if it is to have SVE, with vectors of this length."""
    return f"max,sve-default-vector-length={target.vector_bytes}" if "sve" in target.features else "max"


@dataclass(frozen=True)
class Section:
    """A section of an object file."""

    type: int
    flags: int
    link: int
    info: int
    data: bytes


class Program:
    """One segment at a fixed address. Nothing moves after it was placed."""

    def __init__(self, arrays: Mapping[Buffer, Array]) -> None:
        self._image = bytearray(_ROOM)
        self._code: list[int] = []
        self._places: dict[Buffer, tuple[int, Array]] = {}
        self._data_start = self._place(b"")
        for b, a in arrays.items():
            self._places[b] = (self._place(np.ascontiguousarray(a).tobytes()), a)
        self._data_end = len(self._image) + _BASE

    def add(self, obj: bytes, symbol: str, params: Sequence[Buffer], count: int) -> None:
        """Call a kernel of an object for each of its parts."""
        entry = self._load(obj, symbol)
        pointers = b"".join(struct.pack("<Q", self._places[p][0]) for p in params)
        args = self._place(pointers or bytes(8))
        for part in range(count):
            self._set(0, args)
            self._set(1, part)
            self._set(9, entry)
            self._code.append(0xD63F0000 | 9 << 5)  # blr x9

    def run(self, path: Path, outputs: Sequence[Buffer], cpu: str) -> list[Array]:
        self._system_call(64, 1, self._data_start, self._data_end - self._data_start)  # write
        self._system_call(93, 0)  # exit
        path.write_bytes(self._elf())
        path.chmod(0o700)
        assert QEMU is not None, "qemu-aarch64 is required here and not installed"
        done = subprocess.run([QEMU, "-cpu", cpu, str(path)], capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, f"{path.name} ended with {done.returncode}: {done.stderr.decode()}"
        found: list[Array] = []
        for b in outputs:
            address, old = self._places[b]
            start = address - self._data_start
            raw = np.frombuffer(done.stdout, np.uint8, old.nbytes, start)
            found.append(raw.view(b.dtype.numpy).reshape(b.shape).copy())
        return found

    # -------------------------------------------------------------------------------------------------- start code

    def _set(self, register: int, value: int) -> None:
        """movz and three movk."""
        for n in range(4):
            opcode = 0xD2800000 if n == 0 else 0xF2800000
            self._code.append(opcode | n << 21 | (value >> 16 * n & 0xFFFF) << 5 | register)

    def _system_call(self, number: int, *args: int) -> None:
        for n, value in enumerate(args):
            self._set(n, value)
        self._set(8, number)
        self._code.append(0xD4000001)  # svc #0

    def _elf(self) -> bytes:
        start = 64 + 56  # after the headers
        code = b"".join(struct.pack("<I", c) for c in self._code)
        assert start + len(code) <= _ROOM, "too many parts for the start code"
        size = len(self._image)
        head = struct.pack(
            "<16sHHIQQQIHHHHHH",
            b"\x7fELF\x02\x01\x01",
            *(2, 183, 1, _BASE + start, 64, 0, 0, 64, 56, 1, 0, 0, 0),  # an executable, for aarch64
        )
        segment = struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, size, size, 0x1000)
        self._image[: start + len(code)] = head + segment + code
        return bytes(self._image)

    # ----------------------------------------------------------------------------------------------------- linking

    def _place(self, data: bytes) -> int:
        """Append data; its address."""
        self._image += bytes(-len(self._image) % _ALIGN)
        address = _BASE + len(self._image)
        self._image += data
        return address

    def _load(self, obj: bytes, symbol: str) -> int:
        """Place what the object needs in memory, relocate it, and return the address of `symbol`."""
        sections = _sections(obj)
        at = {n: self._place(s.data) for n, s in enumerate(sections) if s.flags & 2}  # allocated
        table = next(s for s in sections if s.type == 2)
        names = sections[table.link].data
        addresses: list[int] = []
        entry = 0
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.data):
            addresses.append(at.get(section, 0) + value)
            if names[name : names.index(b"\0", name)].decode() == symbol:
                entry = addresses[-1]
        for s in sections:
            if s.type == 4 and s.info in at:
                for offset, info, addend in struct.iter_unpack("<QQq", s.data):
                    self._relocate(at[s.info] + offset, info & 0xFFFFFFFF, addresses[info >> 32] + addend)
        assert entry, f"{symbol} is not in the object"
        return entry

    def _relocate(self, place: int, kind: int, value: int) -> None:
        at = place - _BASE
        (word,) = struct.unpack_from("<I", self._image, at)
        low = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # add, and loads of 1 … 16 bytes
        if kind == 275:  # adrp
            pages = (value >> 12) - (place >> 12)
            word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        elif kind in low:
            word |= ((value & 0xFFF) >> low[kind]) << 10
        else:
            assert kind == 261, f"relocation {kind}"  # a distance in data that is not code
            word = value - place & 0xFFFFFFFF
        struct.pack_into("<I", self._image, at, word)


def _sections(obj: bytes) -> list[Section]:
    (offset,) = struct.unpack_from("<Q", obj, 40)
    size, count = struct.unpack_from("<HH", obj, 58)
    out: list[Section] = []
    for n in range(count):
        _, kind, flags, _, start, length, link, info, _, _ = struct.unpack_from(
            "<IIQQQQIIQQ", obj, offset + n * size
        )
        data = bytes(length) if kind == 8 else obj[start : start + length]
        out.append(Section(kind, flags, link, info, data))
    return out
