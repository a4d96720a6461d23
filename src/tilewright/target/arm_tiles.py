"""Tiles of matrices of bytes on aarch64 with i8mm, in vectors of NEON or of SVE.

    arm.i8i8.tile_8x8x16       C[i, j] += Σ A[i, k, g] · B[k, j, g]      8 rows, 8 columns, 16 products of bytes
    arm.i32.zero_8x8           C[i, j] = 0
    arm.i32.store_8x8          D[i, j] = C[i, j]

There is one of each for every shape, made when it is asked for by its name. `smmla` multiplies two rows of eight bytes
by two columns of eight, and adds the four sums to a vector. A tile is as many such vectors as it takes, in which only
these intrinsics know their way: they stay as they are from zero to store, which puts rows together again. A vector of
SVE has a pair of columns in each of its segments of 16 bytes.

Sums are modulo 2^32, in any order. Groups of eight of A and of B lie side by side. Where a tile is not whole, the rest
of its vectors is zero, and nothing is read or written outside of the operands.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, Var, cast, const
from tilewright.target.arm_vectors import NEON, SVE_256, ArmVectors
from tilewright.target.intrinsic import (
    MEMORY,
    REGISTERS,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    state,
)

GROUP = 8  # products that an instruction adds up, of one element of the result; given
PAIR = 2  # rows and columns of an instruction; given
DEPTH = 16  # products of an element that one intrinsic adds at most: a row of these is one load; bound
_REGISTERS = 32  # registers; given
_BESIDE = 4  # registers for columns, which pass by: no accumulators are spilled; bound
_VECTORS: Mapping[str, ArmVectors] = MappingProxyType({"arm": NEON, "sve": SVE_256})
_PRODUCTS: Mapping[str, tuple[DType, DType, str]] = MappingProxyType(
    {
        "u8i8": (DType.U8, DType.I8, "usmmla"),
        "i8i8": (DType.I8, DType.I8, "smmla"),
        "u8u8": (DType.U8, DType.U8, "ummla"),
    }
)
_NAME = re.compile(
    r"(?P<isa>arm|sve)\.(?:(?P<types>[iu]8[iu]8)\.tile|i32\.(?P<move>zero|store))_"
    r"(?P<rows>[1-9]\d?)x(?P<columns>[1-9]\d?)(?:x(?P<depth>[1-9]\d?))?"
)


def pairs(count: int, together: int = PAIR) -> int:
    return -(-count // together)


def fits_vectors(rows: int, columns: int, v: ArmVectors = NEON) -> bool:
    """Are there registers for a C of this shape, and for what is multiplied?"""
    high, wide = pairs(rows), pairs(columns, PAIR * v.segments)
    return high * wide + high * (DEPTH // GROUP) + _BESIDE <= _REGISTERS


@dataclass(frozen=True, slots=True)
class _Tile:
    """C in vectors: number n · wide + m has the n-th pair of rows, and the m-th columns."""

    v: ArmVectors
    rows: int
    columns: int

    @property
    def step(self) -> int:
        """Columns of a vector."""
        return PAIR * self.v.segments

    @property
    def high(self) -> int:
        return pairs(self.rows)

    @property
    def wide(self) -> int:
        return pairs(self.columns, self.step)

    def product(self, instruction: str, depth: int) -> Emitter:
        def emit(c: EmitContext) -> None:
            for start in range(0, depth, DEPTH):
                left = [self._rows(c, n, start, depth) for n in range(self.high)]
                for at in range(len(left[0])):
                    for m in range(self.wide):
                        right = self._columns(c, m, start // GROUP + at)
                        for n in range(self.high):
                            number = n * self.wide + m
                            total = self.v.add(c, instruction, c.vector(0, number), left[n][at], right)
                            c.set_vector(0, number, total)

        return emit

    def _rows(self, c: EmitContext, pair: int, start: int, depth: int) -> list[str]:
        """For each group of up to `DEPTH` products from `start` on, a pair of rows, in each segment."""
        size = min(DEPTH, depth - start)
        at = [r * depth + start for r in range(PAIR * pair, min(PAIR * pair + PAIR, self.rows))]
        loaded = [c.get(1, n, size) for n in at]
        loaded += ["zeroinitializer"] * (PAIR - len(loaded))
        found: list[str] = []
        for group in range(size // GROUP):
            places = [r * size + group * GROUP + b for r in range(PAIR) for b in range(GROUP)]
            found.append(self.v.in_every_segment(c, _shuffle(c, "i8", size, loaded, places)))
        return found

    def _columns(self, c: EmitContext, number: int, group: int) -> str:
        """The columns of a vector."""
        first = number * self.step
        count = min(self.step, self.columns - first)
        whole = c.get(2, (group * self.columns + first) * GROUP, count * GROUP)
        if count == self.step:
            return whole
        size = self.step * GROUP
        return _shuffle(
            c,
            "i8",
            count * GROUP,
            [whole, "zeroinitializer"],
            [min(n, count * GROUP) for n in range(size)],
        )

    def zero(self) -> Emitter:
        def emit(c: EmitContext) -> None:
            for n in range(self.high * self.wide):
                c.set_vector(0, n, "zeroinitializer")

        return emit

    def store(self) -> Emitter:
        """Rows of two neighbouring vectors at a time."""
        lanes, together = self.v.lanes, PAIR * self.step

        def emit(c: EmitContext) -> None:
            for row, start in self._pieces(together):
                first = row // PAIR * self.wide + start // self.step
                second = min(first + 1, (row // PAIR + 1) * self.wide - 1)
                count = min(together, self.columns - start)
                both = [c.vector(1, first), c.vector(1, second)]
                picks = [
                    n // self.step * lanes + n % self.step // PAIR * 4 + row % PAIR * PAIR + n % PAIR
                    for n in range(count)
                ]
                if count == 1:
                    value = c.op(f"extractelement <{lanes} x i32> {both[0]}, i64 {picks[0]}")
                else:
                    value = _shuffle(c, "i32", lanes, both, picks)
                c.put(0, row * self.columns + start, count, value)

        return emit

    def _pieces(self, together: int) -> Iterator[tuple[int, int]]:
        for row in range(self.rows):
            for start in range(0, self.columns, together):
                yield row, start


def _shuffle(c: EmitContext, element: str, size: int, two: list[str], picks: list[int]) -> str:
    t, mask = f"<{size} x {element}>", ", ".join(f"i32 {p}" for p in picks)
    return c.op(f"shufflevector {t} {two[0]}, {t} {two[1]}, <{len(picks)} x i32> <{mask}>")


# --------------------------------------------------------------------------------------------------------- intrinsics


@lru_cache(maxsize=1024)
def vector_tile(name: str) -> Intrinsic | None:
    """The intrinsic of this name, if it is one of these tiles."""
    found = _NAME.fullmatch(name)
    if found is None or (found["types"] is None) != (found["depth"] is None):
        return None
    v, rows, columns = _VECTORS[found["isa"]], int(found["rows"]), int(found["columns"])
    if not fits_vectors(rows, columns, v):
        return None
    tile, features = _Tile(v, rows, columns), v.features | {"i8mm"}
    vectors = tile.high * tile.wide, v.lanes
    c = Buffer("C", (rows, columns), DType.I32, Scope.REGISTER)
    i, j = Var("i"), Var("j")
    spatial = {i: rows, j: columns}
    if found["move"] == "zero":
        meaning = state("zero", (c,), spatial, {}, c[i, j], const(0, DType.I32))
        return Intrinsic(
            name, meaning, (Operand("C", REGISTERS, 1),), features, emitter=tile.zero(), vectors=vectors
        )
    if found["move"] == "store":
        d = Buffer("D", (rows, columns), DType.I32)
        meaning = state("store", (d, c), spatial, {}, d[i, j], c[i, j])
        operands = (Operand("D", MEMORY, 1), Operand("C", REGISTERS, 1))
        return Intrinsic(name, meaning, operands, features, emitter=tile.store(), vectors=vectors)
    product, depth = _PRODUCTS.get(found["types"]), int(found["depth"])
    if product is None or depth % GROUP or depth > DEPTH:
        return None
    left, right, instruction = product
    a = Buffer("A", (rows, depth // GROUP, GROUP), left)
    b = Buffer("B", (depth // GROUP, columns, GROUP), right)
    k, g = Var("k"), Var("g")
    value: Expr = c[i, j] + cast(DType.I32, a[i, k, g]) * cast(DType.I32, b[k, j, g])
    return Intrinsic(
        name,
        state("tile", (c, a, b), spatial, {k: depth // GROUP, g: GROUP}, c[i, j], value),
        (Operand("C", REGISTERS, 1), Operand("A", MEMORY, 2), Operand("B", MEMORY, 2)),
        features,
        emitter=tile.product(instruction, depth),
        vectors=vectors,
    )
