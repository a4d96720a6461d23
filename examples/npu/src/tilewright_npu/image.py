"""A compiled region as bytes: a head, a description, and instructions.

    "TNPU"  version: u16  0: u16  size of the description: u32  size of the instructions: u32  description  instructions

The description (JSON) says where the region's inputs and outputs lie in the machine's memory, and by which constants of
the model, known by name, and which scales the memory is filled before the first run. The constants are not inside.
"""

import json
import struct
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright_npu.constants import Constants
from tilewright_npu.isa import Instruction, decode, encode

MAGIC, VERSION = b"TNPU", 1
_HEAD = struct.Struct("<4sHHII")


class ImageError(ValueError):
    """Bytes that are no image of this version."""


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    dram: int  # bytes of memory that it takes
    inputs: tuple[int, ...]  # where they are
    outputs: tuple[int, ...]
    layers: tuple[Constants, ...]
    code: tuple[Instruction, ...]

    def to_bytes(self) -> bytes:
        description = json.dumps(asdict(replace(self, code=())), separators=(",", ":")).encode()
        code = encode(self.code)
        return _HEAD.pack(MAGIC, VERSION, 0, len(description), len(code)) + description + code

    @staticmethod
    def from_bytes(data: bytes) -> "Image":
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise ImageError("this is no program of the NPU")
        _, version, _, description, code = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ImageError(f"a program of version {version}; the machine runs version {VERSION}")
        if len(data) != _HEAD.size + description + code:
            raise ImageError(f"{len(data)} bytes, where {_HEAD.size + description + code} are announced")
        start = _HEAD.size + description
        said: dict[str, Any] = json.loads(data[_HEAD.size : start])
        for one in said["layers"]:
            one["biases"] = _pairs(one["biases"])
        return Image(
            said["name"],
            said["dram"],
            tuple(said["inputs"]),
            tuple(said["outputs"]),
            tuple(Constants(**one) for one in said["layers"]),
            tuple(decode(data[start:])),
        )


def _pairs(lists: list[list[Any]]) -> tuple[tuple[str, float], ...]:
    return tuple((str(name), float(factor)) for name, factor in lists)
