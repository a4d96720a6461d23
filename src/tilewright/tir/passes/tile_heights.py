"""Tiles of an open dimension, in as many heights as it takes to cover exactly what is in use.

    for t in range(16):                     for t in range(16, count of tiles of 8 rows):
        for r in unrolled(8):                   for r in unrolled(8): … rows t * 8 + r …
            … rows t * 8 + r …      ──>     for t in range(18, count of tiles of 7 rows):
                                                for r in unrolled(7): … rows start + t * 7 + r …
                                            …

A register tile has a constant number of rows. With 9 rows in use, two tiles of 8 compute 16; tiles of 5 and 4 rows
compute 9. There are as few tiles as there can be, of two heights that differ by one; which, is known when the program
runs, and the code is there for all that occur. Few rows have one tile, which may be a little too high: what lies beyond
is unspecified.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    Buffer,
    Expr,
    Var,
    as_index,
    const,
    equal,
    free_vars,
    maximum,
    minimum,
    select,
)
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_exprs, redirect, transform_stmt
from tilewright.tir.stmt import For, If, LoopKind, Stmt, loops, seq, stmt_exprs, walk_stmts

_FEW = (1, 2)  # heights of single tiles below half of the full one: what one or two rows of tokens take


@dataclass(frozen=True, slots=True, eq=False)
class OpenTiles:
    """A loop over tiles of `height` rows, of which `room` are in use from the loop's first on."""

    loop: For
    height: int
    rows: frozenset[Var]  # the unrolled loops over the rows of a tile
    room: Expr


def find_tiles(loop: For, height: int, room: Expr, simplify: Simplifier) -> OpenTiles | None:
    """The loop as one over tiles, if all that it does to a row it does by its number."""
    rows = frozenset(n.var for n in loops(loop.body) if n.kind is LoopKind.UNROLLED and n.extent == height)
    used: set[Var] = set()
    for n in walk_stmts(loop.body):
        for e in stmt_exprs(n):
            if loop.var not in free_vars(e):
                continue
            row = _row_of(e, loop.var, height, rows, simplify)
            if row is None:
                return None
            used.add(row)
    if not used or any(_is_used_alone(loop, v, simplify) for v in used):
        return None
    return OpenTiles(loop, height, frozenset(used), room)


def _row_of(e: Expr, var: Var, height: int, rows: frozenset[Var], simplify: Simplifier) -> Var | None:
    """The loop over rows that `e`, a number of a row and more, has beside the loop over tiles."""
    if e.dtype is not INDEX:
        return None
    terms = dict(simplify.linear(e).terms)
    mine = terms.pop(var, None)
    found = [(a, k) for a, k in terms.items() if isinstance(a, Var) and a in rows]
    if mine is None or len(found) != 1 or any(var in free_vars(a) for a in terms):
        return None
    (row, k), *_ = found
    others = [a for a in terms if a is not row]
    return row if mine == k * height and not any(rows & free_vars(a) for a in others) else None


def _is_used_alone(loop: For, row: Var, simplify: Simplifier) -> bool:
    """Does anything depend on the number of a row in its tile?"""
    return any(
        row in free_vars(e) and loop.var not in free_vars(e)
        for n in walk_stmts(loop.body)
        for e in stmt_exprs(n)
    )


def by_heights(
    tiles: OpenTiles, own: Collection[Buffer], simplify: Simplifier
) -> tuple[Stmt, tuple[Buffer, ...]]:
    """The tiles in all heights that occur, and the buffers that are new: each height has its own of those that only
    the loop uses (`own`).
    """
    full, loop = tiles.height, tiles.loop
    least, most = simplify.bounds(tiles.room)
    room = tiles.room if most <= full * loop.extent else minimum(tiles.room, full * loop.extent)
    low = -(-full // 2)
    covered, few = room, [h for h in _FEW if h < low and least <= h]
    if least < low:
        covered = maximum(room, low)
        for h in reversed(few):
            covered = select(room < h + 1, const(h), covered)
    count = (covered + (full - 1)) // full
    height = covered // count
    higher = covered - count * height  # tiles that have a row more than the others
    heights = [*few, *(h for h in range(low, full + 1))]
    parts: list[Stmt] = []
    made: list[Buffer] = []
    for h in reversed(heights):
        if h < low:
            tiles_here, start = select(equal(covered, h), const(1), const(0)), const(0)
        else:
            tiles_here = select(
                equal(height, h), count - higher, select(equal(height, h - 1), higher, const(0))
            )
            start = select(equal(height, h), higher * (h + 1), const(0))
        body, new = _of_height(tiles, h, simplify(start), own, simplify)
        made += new
        extent = 1 if h < low else -(-full * loop.extent // h)
        here = simplify(tiles_here)
        inner = replace(body, extent=extent, limit=here if extent > 1 else None)
        parts.append(If(as_index(0) < here, inner))
    out = seq(*parts)
    return (out if least >= 1 else If(as_index(0) < room, out)), tuple(made)


def _of_height(
    tiles: OpenTiles, height: int, start: Expr, own: Collection[Buffer], simplify: Simplifier
) -> tuple[For, list[Buffer]]:
    """The loop over tiles of this height, from the row `start` on."""
    loop, var = tiles.loop, tiles.loop.var

    def moved(e: Expr) -> Expr:
        if var not in free_vars(e):
            return e
        form = simplify.linear(e)
        k = dict(form.terms)[var] // tiles.height
        rest = simplify.expr(Linear(form.const, tuple(t for t in form.terms if t[0] is not var)))
        return rest + (start + var * height) * k

    def lower(s: Stmt) -> Stmt | None:
        return replace(s, extent=height) if isinstance(s, For) and s.var in tiles.rows else None

    suffix = f"_h{height}"
    # Parts of a partitioned loop may share a buffer: the name of the loop tells their copies apart.
    copies = {b: Buffer(f"{b.name}_{var.name}{suffix}", b.shape, b.dtype, b.scope, b.sizes) for b in own}
    body = redirect(transform_stmt(map_exprs(loop.body, moved), lower), copies)
    made = rename(replace(loop, body=body), suffix)
    assert isinstance(made, For)
    return made, list(copies.values())
