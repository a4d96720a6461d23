"""Vectors of aarch64 that instructions for bytes work on: those of NEON, and those of SVE where their length is known.

SVE's instructions are on vectors of any length in LLVM IR. Values stay vectors of a fixed length, as those of all other
code; around an instruction they go in and out of such a vector, which costs nothing where the length is the machine's.
"""

from dataclasses import dataclass

from tilewright.target.intrinsic import EmitContext
from tilewright.target.lane_products import AddProducts
from tilewright.target.target import SVE_256_FEATURES

_SEGMENT = 4  # elements of 32 bits of a segment; given
_BYTES = 16  # of a segment; given
_SUMS, _CHARS = "<vscale x 4 x i32>", "<vscale x 16 x i8>"


@dataclass(frozen=True, slots=True)
class ArmVectors:
    segments: int  # of 16 bytes
    features: frozenset[str]

    @property
    def lanes(self) -> int:
        """Elements of 32 bits."""
        return _SEGMENT * self.segments

    def add(self, c: EmitContext, instruction: str, total: str, left: str, right: str) -> str:
        """Sums with products of bytes added, by `sdot`, `smmla` and their kin."""
        sums, chars = f"<{self.lanes} x i32>", f"<{4 * self.lanes} x i8>"
        if not self._is_scalable:
            function = f"llvm.aarch64.neon.{instruction}.v4i32.v16i8"
            return c.call(function, sums, (sums, total), (chars, left), (chars, right))
        factors = (_scalable(c, "i8", _BYTES * self.segments, x) for x in (left, right))
        args = _scalable(c, "i32", self.lanes, total), *factors
        made = c.call(f"llvm.aarch64.sve.{instruction}.nxv4i32", _SUMS, *args)
        return c.call(f"llvm.vector.extract.v{self.lanes}i32.nxv4i32", sums, (_SUMS, made), ("i64", "0"))

    def in_every_segment(self, c: EmitContext, bytes_of_one: str) -> str:
        """The bytes of a segment, once in each."""
        if not self._is_scalable:
            return bytes_of_one
        args = _scalable(c, "i8", _BYTES, bytes_of_one), ("i64", "0")
        made = c.call("llvm.aarch64.sve.dupq.lane.nxv16i8", _CHARS, *args)
        count = _BYTES * self.segments
        return c.call(
            f"llvm.vector.extract.v{count}i8.nxv16i8", f"<{count} x i8>", (_CHARS, made), ("i64", "0")
        )

    @property
    def _is_scalable(self) -> bool:
        return "sve" in self.features

    def adding(self, instruction: str) -> AddProducts:
        return lambda c, total, left, right: self.add(c, instruction, total, left, right)


def _scalable(c: EmitContext, element: str, count: int, value: str) -> tuple[str, str]:
    """The type, and a vector of fixed length as one of any length."""
    whole, each = (_SUMS, 4) if element == "i32" else (_CHARS, 16)
    args = (whole, "poison"), (f"<{count} x {element}>", value), ("i64", "0")
    return whole, c.call(f"llvm.vector.insert.nxv{each}{element}.v{count}{element}", whole, *args)


# How many segments of 16 bytes vectors have; given.
NEON = ArmVectors(1, frozenset({"neon"}))
SVE_256 = ArmVectors(2, SVE_256_FEATURES)
