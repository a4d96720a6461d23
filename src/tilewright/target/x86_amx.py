"""Tiles of matrices on x86-64 with AMX.

    amx.u8i8.tile_28x32x64      C[i, j] += Σ A[i, k, g] · B[k, j, g]      28 rows, 32 columns, 64 products of bytes
    amx.i32.zero_28x32          C[i, j] = 0
    amx.i32.store_28x32         D[i, j] = C[i, j]

There is one of each for every shape, made when it is asked for by its name. A tile register has up to 16 rows of 64
bytes. C is cut into as many of them as it takes: rows evenly, columns by 16. It stays in them from zero to store,
through all that is added; operands are loaded into the others. Their shapes are set at the head of a kernel, or of a
part of it (`codegen/tiles.py`).

Sums are modulo 2^32, in any order. Groups of four of A and of B lie side by side, as for dot products in vectors. Where
tiles are not whole, nothing is read or written outside of the operands.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Scope, Var, cast, const
from tilewright.target.intrinsic import (
    MEMORY,
    REGISTERS,
    EmitContext,
    Emitter,
    Intrinsic,
    Operand,
    TileRegisters,
    state,
)

TILE_ROWS = 16  # of a tile register; given
TILE_BYTES = 64  # of a row; given
TILE_COUNT = 8  # of tile registers; given
GROUP = 4  # products of bytes that an element of the sum adds up at a time; given
TILE_FEATURES = frozenset({"amx-tile", "amx-int8"})
_PRODUCTS: Mapping[str, tuple[DType, DType, str]] = MappingProxyType(
    {
        "u8i8": (DType.U8, DType.I8, "llvm.x86.tdpbusd"),
        "i8i8": (DType.I8, DType.I8, "llvm.x86.tdpbssd"),
        "u8u8": (DType.U8, DType.U8, "llvm.x86.tdpbuud"),
        "i8u8": (DType.I8, DType.U8, "llvm.x86.tdpbsud"),
    }
)
_NAME = re.compile(
    r"amx\.(?:(?P<types>[iu]8[iu]8)\.tile|i32\.(?P<move>zero|store))_"
    r"(?P<rows>[1-9]\d?)x(?P<columns>[1-9]\d?)(?:x(?P<depth>[1-9]\d?))?"
)


# ---------------------------------------------------------------------------------------------------------- shapes


class _Part(NamedTuple):
    """Of rows or of columns, what is in one tile."""

    start: int
    size: int


def row_parts(rows: int) -> list[int]:
    """Rows of each tile: as few as there can be, the larger ones first."""
    count = -(-rows // TILE_ROWS)
    size, larger = divmod(rows, count)
    return [size + 1] * larger + [size] * (count - larger)


def column_parts(columns: int) -> list[int]:
    """Columns of each tile: whole ones, and what is left."""
    whole, rest = divmod(columns, TILE_ROWS)
    return [TILE_ROWS] * whole + ([rest] if rest else [])


def _parts(sizes: list[int]) -> list[_Part]:
    return [_Part(sum(sizes[:n]), size) for n, size in enumerate(sizes)]


class _Layout(NamedTuple):
    """Which tile registers hold what."""

    rows: list[_Part]
    columns: list[_Part]
    sums: list[list[int]]  # numbers, by rows and columns
    left: list[int]  # of the operand with the rows
    right: list[int]  # of that with the columns; they take turns if there are more parts

    def shapes(self, depth: int | None) -> TileRegisters:
        found = {
            number: (r.size, 4 * c.size)
            for r, numbers in zip(self.rows, self.sums, strict=True)
            for c, number in zip(self.columns, numbers, strict=True)
        }
        if depth is not None:
            found |= {n: (r.size, depth) for n, r in zip(self.left, self.rows, strict=True)}
            found |= {
                self.right[n % len(self.right)]: (depth // GROUP, 4 * c.size)
                for n, c in enumerate(self.columns)
            }
        return tuple((n, *shape) for n, shape in sorted(found.items()))


@lru_cache(maxsize=256)
def _layout(rows: int, columns: int) -> _Layout | None:
    """None if so many tiles do not fit."""
    r, c = _parts(row_parts(rows)), _parts(column_parts(columns))
    taken = len(r) * len(c) + len(r)
    free = TILE_COUNT - taken
    # Columns that take turns in a tile have one shape.
    if free < 1 or (free < len(c) and columns % TILE_ROWS):
        return None
    return _Layout(
        r,
        c,
        [[n * len(c) + m for m in range(len(c))] for n in range(len(r))],
        list(range(taken - len(r), taken)),
        list(range(taken, taken + min(free, len(c)))),
    )


def fits_tiles(rows: int, columns: int) -> bool:
    """Are there tile registers for a C of this shape, and for what is multiplied?"""
    return _layout(rows, columns) is not None


# ------------------------------------------------------------------------------------------------------ instructions


def _byte(n: int) -> tuple[str, str]:
    return "i8", str(n)


def _at(c: EmitContext, pointer: str, nbytes: int) -> tuple[str, str]:
    return "ptr", c.op(f"getelementptr i8, ptr {pointer}, i64 {nbytes}") if nbytes else pointer


def _emit_product(layout: _Layout, instruction: str) -> Emitter:
    load = "llvm.x86.tileloadd64"

    def emit(c: EmitContext) -> None:
        a, b = c.pointer(1), c.pointer(2)
        row, step = c.stride(1, 0), c.stride(2, 0)  # in bytes: elements are bytes
        across = ("i64", str(step or TILE_BYTES))
        along = ("i64", str(row or TILE_BYTES))
        for m, column in enumerate(layout.columns):
            right = layout.right[m % len(layout.right)]
            c.run(load, _byte(right), _at(c, b, GROUP * column.start), across)
            for n, part in enumerate(layout.rows):
                if not m:
                    c.run(load, _byte(layout.left[n]), _at(c, a, part.start * row), along)
                c.run(instruction, _byte(layout.sums[n][m]), _byte(layout.left[n]), _byte(right))

    return emit


def _emit_zero(layout: _Layout) -> Emitter:
    def emit(c: EmitContext) -> None:
        for number in (n for numbers in layout.sums for n in numbers):
            c.run("llvm.x86.tilezero", _byte(number))

    return emit


def _emit_store(layout: _Layout) -> Emitter:
    def emit(c: EmitContext) -> None:
        to, row = c.pointer(0), 4 * c.stride(0, 0)
        for part, numbers in zip(layout.rows, layout.sums, strict=True):
            for column, number in zip(layout.columns, numbers, strict=True):
                at = _at(c, to, part.start * row + 4 * column.start)
                c.run("llvm.x86.tilestored64", _byte(number), at, ("i64", str(row or TILE_BYTES)))

    return emit


# --------------------------------------------------------------------------------------------------------- intrinsics


@lru_cache(maxsize=1024)
def tile_intrinsic(name: str) -> Intrinsic | None:
    """The intrinsic of this name, if it is one of tiles."""
    found = _NAME.fullmatch(name)
    if found is None or (found["types"] is None) != (found["depth"] is None):
        return None
    rows, columns = int(found["rows"]), int(found["columns"])
    layout = _layout(rows, columns)
    if layout is None:
        return None
    c = Buffer("C", (rows, columns), DType.I32, Scope.REGISTER)
    i, j = Var("i"), Var("j")
    spatial = {i: rows, j: columns}
    if found["move"] == "zero":
        meaning = state("zero", (c,), spatial, {}, c[i, j], const(0, DType.I32))
        operands = (Operand("C", REGISTERS, 1),)
        return Intrinsic(
            name, meaning, operands, TILE_FEATURES, emitter=_emit_zero(layout), tiles=layout.shapes(None)
        )
    if found["move"] == "store":
        d = Buffer("D", (rows, columns), DType.I32)
        meaning = state("store", (d, c), spatial, {}, d[i, j], c[i, j])
        operands = (Operand("D", MEMORY, 1), Operand("C", REGISTERS, 1))
        return Intrinsic(
            name, meaning, operands, TILE_FEATURES, emitter=_emit_store(layout), tiles=layout.shapes(None)
        )
    product, depth = _PRODUCTS.get(found["types"]), int(found["depth"])
    if product is None or depth > TILE_BYTES or depth % GROUP:
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
        TILE_FEATURES,
        emitter=_emit_product(layout, instruction),
        tiles=layout.shapes(depth),
    )
