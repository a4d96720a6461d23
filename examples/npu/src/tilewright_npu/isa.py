"""The instruction set: 32 bytes an instruction, the operation in the first, little-endian fields after it.

LOAD and STORE move a box of rows × pixels × channels; in DRAM all three have strides (in elements), in the scratchpad
channels lie side by side. A `wide` element is a float32, otherwise it is an int8: LOAD quantizes wide ones on their way
in, by the last SCALE; a wide STORE takes them from the accumulators, where VECTOR has left them.

MATMUL multiplies rows × pixels vectors of `depth` bytes with a matrix of `depth` × `columns`. Since channels are last,
a row of a convolution's window is such a vector: a window of 3 × 3 takes three MATMULs, which accumulate. The array's
sequencer cuts all of them into tiles.

Text is one instruction a line: `MATMUL at=0 row_pitch=192 … accumulate=1`; what is 0 may be left out.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tilewright_npu.machine import Unit

SIZE = 32  # bytes of an instruction


class IsaError(ValueError):
    """Bytes or text that are no instruction, or a field that does not fit."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Fields are in the order of `layout`, which has their types as `struct` writes them."""

    code: ClassVar[int]
    layout: ClassVar[str]
    unit: ClassVar[Unit]

    def __str__(self) -> str:
        said = [f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name))]
        return " ".join([type(self).__name__.upper(), *said])


@dataclass(frozen=True, slots=True)
class _Move(Instruction):
    layout: ClassVar[str] = "IIIIIHHHHHB"
    dram: int = 0  # the first byte
    row: int = 0  # strides in DRAM, in elements
    pixel: int = 0
    channel: int = 0
    at: int = 0  # the first byte, or word of the accumulators
    row_pitch: int = 0  # strides there
    pixel_pitch: int = 0
    rows: int = 0
    pixels: int = 0
    channels: int = 0
    wide: int = 0

    @property
    def bytes(self) -> int:
        """How many cross the memory bus."""
        return self.rows * self.pixels * self.channels * (4 if self.wide else 1)


@dataclass(frozen=True, slots=True)
class Load(_Move):
    code: ClassVar[int] = 1
    unit: ClassVar[Unit] = Unit.LOAD


@dataclass(frozen=True, slots=True)
class Store(_Move):
    code: ClassVar[int] = 2
    unit: ClassVar[Unit] = Unit.STORE


@dataclass(frozen=True, slots=True)
class Scale(Instruction):
    """What wide elements are multiplied with when they are loaded, and what is added."""

    code: ClassVar[int] = 3
    layout: ClassVar[str] = "fb"
    unit: ClassVar[Unit] = Unit.LOAD
    factor: float = 0.0
    zero: int = 0


@dataclass(frozen=True, slots=True)
class Fill(Instruction):
    """One value all over a part of the scratchpad: the padding of a convolution."""

    code: ClassVar[int] = 4
    layout: ClassVar[str] = "IIb"
    unit: ClassVar[Unit] = Unit.LOAD
    at: int = 0
    bytes: int = 0
    value: int = 0


@dataclass(frozen=True, slots=True)
class Table(Instruction):
    """Constants of channels for the vector unit: six words each (`emulator.Entry`)."""

    code: ClassVar[int] = 5
    layout: ClassVar[str] = "IHH"
    unit: ClassVar[Unit] = Unit.LOAD
    dram: int = 0
    at: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Matmul(Instruction):
    code: ClassVar[int] = 6
    layout: ClassVar[str] = "IHHHHHHIIB"
    unit: ClassVar[Unit] = Unit.ARRAY
    at: int = 0  # in the scratchpad
    row_pitch: int = 0
    pixel_pitch: int = 0
    rows: int = 0
    pixels: int = 0
    depth: int = 0
    columns: int = 0
    weights: int = 0  # in the scratchpad, row by row
    acc: int = 0  # the first word; rows lie side by side
    accumulate: int = 0  # add to what is there


@dataclass(frozen=True, slots=True)
class Vector(Instruction):
    """Finish sums: add the bias and perhaps a residual, then scale them; to int8 with a zero point and bounds, into the
    scratchpad, or, `wide`, to float32 where they are. `relu` is for wide ones: others have it in their bounds.
    """

    code: ClassVar[int] = 7
    layout: ClassVar[str] = "IHHHIIbbbbBBB"
    unit: ClassVar[Unit] = Unit.VECTOR
    acc: int = 0
    rows: int = 0
    columns: int = 0
    table: int = 0  # the entry of the first column
    at: int = 0  # where bytes go, row by row
    residual: int = 0  # where they come from, row by row
    zero: int = 0
    low: int = 0
    high: int = 0
    residual_zero: int = 0
    has_residual: int = 0
    wide: int = 0
    relu: int = 0


@dataclass(frozen=True, slots=True)
class _Sync(Instruction):
    layout: ClassVar[str] = "BB"
    source: int = 0
    target: int = 0


@dataclass(frozen=True, slots=True)
class Signal(_Sync):
    """The source has done all earlier instructions: a token for the target."""

    code: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class Wait(_Sync):
    """The target takes a token of the source before it goes on."""

    code: ClassVar[int] = 9


OPERATIONS: tuple[type[Instruction], ...] = (
    Load,
    Store,
    Scale,
    Fill,
    Table,
    Matmul,
    Vector,
    Signal,
    Wait,
)
_BY_CODE = {o.code: o for o in OPERATIONS}
_BY_NAME = {o.__name__.upper(): o for o in OPERATIONS}
_STRUCTS: dict[type[Instruction], struct.Struct] = {o: struct.Struct(f"<B{o.layout}") for o in OPERATIONS}
_NAMES: dict[type[Instruction], tuple[str, ...]] = {o: tuple(f.name for f in fields(o)) for o in OPERATIONS}


def encode(code: Iterable[Instruction]) -> bytes:
    out = bytearray()
    for i in code:
        try:
            word = _STRUCTS[type(i)].pack(i.code, *(getattr(i, n) for n in _NAMES[type(i)]))
        except struct.error as e:
            raise IsaError(f"{i}: {e}") from None
        out += word.ljust(SIZE, b"\0")
    return bytes(out)


def decode(data: bytes) -> list[Instruction]:
    if len(data) % SIZE:
        raise IsaError(f"{len(data)} bytes are not a whole number of instructions")
    out: list[Instruction] = []
    for at in range(0, len(data), SIZE):
        kind = _BY_CODE.get(data[at])
        if kind is None:
            raise IsaError(f"instruction {at // SIZE}: there is no operation {data[at]}")
        out.append(kind(*_STRUCTS[kind].unpack_from(data, at)[1:]))
    return out


def disassemble(code: Sequence[Instruction]) -> str:
    return "".join(f"{i}\n" for i in code)


def assemble(text: str) -> list[Instruction]:
    out: list[Instruction] = []
    for number, line in enumerate(text.splitlines(), 1):
        name, *said = line.split("#")[0].split() or [""]
        if not name:
            continue
        kind = _BY_NAME.get(name)
        if kind is None:
            raise IsaError(f"line {number}: there is no operation {name}")
        given = [s.partition("=") for s in said]
        try:
            values: dict[str, Any] = {n: float(v) if n == "factor" else int(v) for n, _, v in given}
            out.append(kind(**values))
        except (TypeError, ValueError) as e:
            raise IsaError(f"line {number}: {e}") from None
    return out
