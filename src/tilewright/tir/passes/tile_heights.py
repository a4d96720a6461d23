"""Tiles of an open dimension, in as many heights as it takes to cover exactly what is in use.

    for t in range(16):                     for t in range(16, count of tiles of 8 rows):
        for r in unrolled(8):                   for r in unrolled(8): … rows t * 8 + r …
            … rows t * 8 + r …      ──>     for t in range(18, count of tiles of 7 rows):
                                                for r in unrolled(7): … rows start + t * 7 + r …
                                            …

A register tile has a constant number of rows. With 9 rows in use, two tiles of 8 compute 16; tiles of 5 and 4 rows
compute 9. There are as few tiles as there can be, of two heights that differ by one; which, is known when the program
runs, and the code is there for all that occur. Few rows have one tile, which may be a little too high: what lies beyond
is unspecified. Tiles that are parts of a kernel have their heights too: which of them a part has, it computes itself.

Where that would be too much code, there are full tiles, and only a few heights for what is left after them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    as_index,
    const,
    equal,
    free_vars,
    maximum,
    minimum,
    select,
    walk,
)
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.tir.rename import rename
from tilewright.tir.rewrite import map_exprs, redirect, transform_stmt
from tilewright.tir.stmt import (
    For,
    If,
    LoopKind,
    Stmt,
    Store,
    children,
    loops,
    seq,
    stmt_exprs,
    walk_stmts,
)

_MOST_INSTRUCTIONS = (
    8_000  # of all heights of a tile, about; bound: a kernel has some of them, and 20,000 at most
)
_FEW = (1, 2)  # heights of single tiles below half of the full one: what one or two rows of tokens take


@dataclass(frozen=True, slots=True, eq=False)
class OpenTiles:
    """A loop over `count` tiles of `height` rows, of which `room` are in use from the first on. `index` is the number
    of a tile: the variable of the loop, or what is left of it where loops were fused.
    """

    loop: For
    index: Expr
    count: int
    height: int
    rows: frozenset[Var]  # the unrolled loops over the rows of a tile
    room: Expr


def tile_indices(loop: For) -> Iterator[tuple[Expr, Expr | None, int]]:
    """What may number tiles in the loop, what else it may number then, and how many tiles there are."""
    yield loop.var, None, loop.extent
    if loop.kind is not LoopKind.PARALLEL:
        return
    found = {
        e.b.value
        for n in walk_stmts(loop.body)
        for root in stmt_exprs(n)
        for e in walk(root)
        if isinstance(e, Binary) and e.op is BinaryOp.MOD and e.a is loop.var and isinstance(e.b, Const)
    }
    for n in sorted(int(n) for n in found):
        if 1 < n < loop.extent and loop.extent % n == 0:
            yield loop.var % n, loop.var // n, n
            yield loop.var // n, loop.var % n, loop.extent // n


def find_tiles(
    loop: For, index: Expr, other: Expr | None, count: int, height: int, room: Expr, simplify: Simplifier
) -> OpenTiles | None:
    """The loop as one over tiles, if all that it does to a row it does by its number. `other`: what else depends on the
    loop's variable, if its tiles are not all that it numbers.
    """
    rows = frozenset(n.var for n in loops(loop.body) if n.kind is LoopKind.UNROLLED and n.extent == height)
    used: set[Var] = set()
    for n in walk_stmts(loop.body):
        for e in stmt_exprs(n):
            if not _depends(e, loop.var, other):
                continue
            row = _row_of(e, index, loop.var, other, height, rows, simplify)
            if row is None:
                return None
            used.add(row)
    if not used or any(_is_used_alone(loop, v, other) for v in used):
        return None
    return OpenTiles(loop, index, count, height, frozenset(used), room)


def _depends(e: Expr, var: Var, other: Expr | None) -> bool:
    """Does it depend on the variable but for the `other` number?"""
    if other is None or var not in free_vars(e):
        return var in free_vars(e)
    return e is not other and (e is var or any(_depends(c, var, other) for c in e.children()))


def _row_of(
    e: Expr,
    index: Expr,
    var: Var,
    other: Expr | None,
    height: int,
    rows: frozenset[Var],
    simplify: Simplifier,
) -> Var | None:
    """The loop over rows that `e`, a number of a row and more, has beside the number of its tile."""
    if e.dtype is not INDEX:
        return None
    terms = dict(simplify.linear(e).terms)
    mine = terms.pop(index, None)
    found = [(a, k) for a, k in terms.items() if isinstance(a, Var) and a in rows]
    if mine is None or len(found) != 1 or any(_depends(a, var, other) for a in terms):
        return None
    (row, k), *_ = found
    others = [a for a in terms if a is not row]
    return row if mine == k * height and not any(rows & free_vars(a) for a in others) else None


def _is_used_alone(loop: For, row: Var, other: Expr | None) -> bool:
    """Does anything depend on the number of a row in its tile?"""
    return any(
        row in free_vars(e) and not _depends(e, loop.var, other)
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
    room = tiles.room if most <= full * tiles.count else minimum(tiles.room, full * tiles.count)
    low = -(-full // 2)
    few = [h for h in _FEW if h < low and least <= h]
    heights = [*few, *range(low, full + 1)]
    if _instructions(tiles) * sum(heights) > full * _MOST_INSTRUCTIONS:
        heights = [*few, low, full] if low < full else heights
        plan = _last_lower(room, full, heights)
    else:
        plan = _balanced(room, full, low, few if least < low else None)
    parts: list[Stmt] = []
    made: list[Buffer] = []
    for h in reversed(heights):
        body, new = _of_height(tiles, h, own, simplify)
        made += new
        if loop.kind is LoopKind.PARALLEL:
            mine, first = plan.of_tile(tiles.index)
            here = rename(body, f"_h{h}", {_FIRST: simplify(first)})
            parts.append(If(simplify(equal(mine, h)), here))
        else:
            count, start = (simplify(e) for e in plan.of_height(h))
            tile = Var(f"{loop.var.name}_h{h}")
            here = rename(body, f"_h{h}", {_FIRST: start + tile * h})
            extent = 1 if h < low else -(-full * loop.extent // h)
            inner = replace(loop, var=tile, body=here, extent=extent, limit=count if extent > 1 else None)
            parts.append(If(as_index(0) < count, inner))
    if loop.kind is LoopKind.PARALLEL:
        tiles_in_use = simplify((room + (full - 1)) // full)
        body = seq(*parts)
        if least < 1:
            body = If(as_index(0) < room, body)
        is_all = tiles.index is loop.var
        return replace(loop, body=body, limit=tiles_in_use if is_all else loop.limit), tuple(made)
    out = seq(*parts)
    return (out if least >= 1 else If(as_index(0) < room, out)), tuple(made)


_FIRST = Var("first_row_of_a_tile")


@dataclass(frozen=True, slots=True, eq=False)
class _Heights:
    """Of `count` tiles, the first `higher` have `height` + `more` rows, the others `height`, or what it is rounded up
    to: `rounded`.
    """

    count: Expr
    higher: Expr
    height: Expr
    full: int
    is_balanced: bool

    def of_tile(self, tile: Expr) -> tuple[Expr, Expr]:
        """The height of a tile, and its first row."""
        if self.is_balanced:
            start = tile * self.height + minimum(tile, self.higher)
            return select(tile < self.higher, self.height + 1, self.height), start
        return select(tile < self.higher, const(self.full), self.height), tile * self.full

    def of_height(self, h: int) -> tuple[Expr, Expr]:
        """How many tiles have this height, and the first row of the first of them."""
        others = self.count - self.higher
        if self.is_balanced:
            found = select(equal(self.height, h - 1), self.higher, const(0))
            start = select(equal(self.height, h), self.higher * (h + 1), const(0))
            return select(equal(self.height, h), others, found), start
        if h == self.full:
            return self.higher + select(equal(self.height, h), others, const(0)), const(0)
        return select(equal(self.height, h), others, const(0)), self.higher * self.full


def _balanced(room: Expr, full: int, low: int, few: list[int] | None) -> _Heights:
    """As few tiles as there can be, whose heights differ by one. `few`: heights below `low` that single tiles have."""
    covered = room
    if few is not None:
        covered = maximum(room, low)
        for h in reversed(few):
            covered = select(room < h + 1, const(h), covered)
    count = (covered + (full - 1)) // full
    height = covered // count
    return _Heights(count, covered - count * height, height, full, is_balanced=True)


def _last_lower(room: Expr, full: int, heights: list[int]) -> _Heights:
    """Full tiles, and one of the least of some heights that has room for what is left."""
    whole = room // full
    rest = room - whole * full
    height = const(heights[-1])
    for h in reversed(heights[:-1]):
        height = select(rest < h + 1, const(h), height)
    return _Heights((room + (full - 1)) // full, whole, height, full, is_balanced=False)


def _instructions(tiles: OpenTiles) -> int:
    """About how many there are in a full tile."""
    total = 0

    def count(s: Stmt, times: int) -> None:
        nonlocal total
        if isinstance(s, For) and s.kind is LoopKind.UNROLLED:
            times *= s.extent
        if isinstance(s, Store):
            total += times * (1 + sum(1 for e in walk(s.value) if e.children() and e.dtype is not INDEX))
        for c in children(s):
            count(c, times)

    count(tiles.loop.body, 1)
    return total


def _of_height(
    tiles: OpenTiles, height: int, own: Collection[Buffer], simplify: Simplifier
) -> tuple[Stmt, list[Buffer]]:
    """What is done with a tile of this height, from the row `_FIRST` on."""
    loop, var, index = tiles.loop, tiles.loop.var, tiles.index

    def moved(e: Expr) -> Expr:
        if var not in free_vars(e):
            return e
        if isinstance(e, Load):  # where an operand of an Emit is
            return Load(e.buffer, tuple(moved(i) for i in e.indices))
        form = simplify.linear(e)
        k = dict(form.terms).get(index)
        if k is None:  # it has the other number alone
            return e
        rest = simplify.expr(Linear(form.const, tuple(t for t in form.terms if t[0] is not index)))
        return rest + _FIRST * (k // tiles.height)

    def lower(s: Stmt) -> Stmt | None:
        return replace(s, extent=height) if isinstance(s, For) and s.var in tiles.rows else None

    # Parts of a partitioned loop may share a buffer: the name of the loop tells their copies apart.
    copies = {b: Buffer(f"{b.name}_{var.name}_h{height}", b.shape, b.dtype, b.scope, b.sizes) for b in own}
    body = redirect(transform_stmt(map_exprs(loop.body, moved), lower), copies)
    return body, list(copies.values())
