"""Transposes: what is stored side by side is far apart where it is read.

    T[w, c] = f(x[c, w])      ──>      for each square of w and c:
                                           for c: for w in lanes: r[c, w] = x[…]         # whole vectors
                                           for w: for c in lanes: T[…] = f(r[c, w])

A square of the source goes through registers, where code generation transposes it: both sides see whole vectors.
Squares are taken in blocks, so that lines are read, and written, as a whole before others push them out of the caches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from tilewright.gir.names import Names
from tilewright.gir.pieces import ElementBox, steps_of
from tilewright.ir.dtype import DType
from tilewright.ir.expr import TRUE, Buffer, Expr, Load, Scope, Var, free_vars, loads
from tilewright.ir.rewrite import replace_loads, substitute
from tilewright.ir.simplify import Simplifier
from tilewright.tir.stmt import For, If, LoopKind, Stmt, Store, seq


@dataclass(frozen=True, slots=True)
class TileShape:
    """Elements of a block of squares, at most: along the source's memory, and along the result's. `sources_first`: the
    next block is the neighbour in the source; otherwise in the result. `squares` are stored together, side by side.
    """

    across: int
    along: int
    sources_first: bool = False
    squares: int = 1


@dataclass(frozen=True, slots=True)
class TransposedReads:
    """Reads that run along the axis `across`, while the results lie along the last axis, `inner`."""

    across: Var
    inner: Var
    reads: tuple[Load, ...]


def find_transposed(piece: ElementBox, lanes: int, simplify: Simplifier) -> TransposedReads | None:
    """The reads of a piece that are side by side along another axis than its results."""
    axes = piece.axes
    if not axes or piece.condition is not TRUE:
        return None
    inner = list(axes)[-1]
    if any(steps_of(s.buffer, s.indices, simplify).get(inner) != 1 for s in piece.stores):
        return None
    reads = list(dict.fromkeys(ld for ld in piece.reads() if ld.buffer.size))
    steps = {ld: steps_of(ld.buffer, ld.indices, simplify) for ld in reads}
    found = [ld for ld in reads if steps[ld].get(inner, 0) not in (0, 1)]
    across = {next((a for a, k in steps[ld].items() if k == 1 and a in axes), None) for ld in found}
    if len(across) != 1 or None in across:
        return None
    (axis,) = (a for a in across if a is not None)
    if min(axes[axis], axes[inner]) < lanes or any(ld.dtype is DType.BOOL for ld in found):
        return None
    written = {s.buffer for s in piece.stores}
    for ld in found:
        # A square may be anywhere if data says where; it is none where an index is bent; and all of it must exist, on
        # whatever side of a condition it is read.
        chosen = any(loads(i) for i in ld.indices) or not _exists(ld, simplify)
        if chosen or ld.buffer in written or any(_is_bent(ld, v, simplify) for v in (axis, inner)):
            return None
    return TransposedReads(axis, inner, tuple(found))


def _is_bent(load: Load, axis: Var, simplify: Simplifier) -> bool:
    """Do the elements along the axis make no box of the buffer, although they are side by side?"""
    atoms = [atom for i in load.indices for atom, _ in simplify.linear(i).terms]
    return any(not isinstance(atom, Var) and axis in free_vars(atom) for atom in atoms)


def _exists(load: Load, simplify: Simplifier) -> bool:
    bounds = [simplify.bounds(i) for i in load.indices]
    return all(b.lo >= 0 and b.hi < n for b, n in zip(bounds, load.buffer.shape, strict=True))


@dataclass(frozen=True, slots=True)
class SquareBlocks:
    """How the squares of a piece are divided: `across` and `along` are squares of a block, `rows` and `columns` are how
    many blocks there are. The last has no squares beyond `rows_in_all`. `squares` side by side count as one.
    """

    across: int
    along: int
    rows: int
    columns: int
    rows_in_all: int
    squares: int


def square_blocks(
    piece: ElementBox, found: TransposedReads, shape: TileShape, lanes: int, parts: int
) -> SquareBlocks:
    """As near to the shape as the extents allow, with no fewer blocks than the parts that are wanted, if there are that
    many rows of squares.
    """
    rows, columns = (piece.axes[a] // lanes for a in (found.across, found.inner))
    squares = _divisor(columns, shape.squares if len(found.reads) == 1 else 1)
    along = _divisor(columns // squares, max(shape.along // (lanes * squares), 1))
    columns = columns // squares // along
    others = prod(e for a, e in piece.axes.items() if a not in (found.across, found.inner))
    least = min(ceil(parts / (others * columns)), rows)
    most = min(max(shape.across // lanes, 1), rows // least)
    across = _divisor(rows, most)
    if 2 * across <= most:  # few divide it, such as none a prime: the last block is smaller
        across = ceil(rows / ceil(rows / most))
    return SquareBlocks(across, along, ceil(rows / across), columns, rows, squares)


class Squares:
    """The blocks of a piece: `loops` over them, and the statements of one."""

    def __init__(
        self,
        piece: ElementBox,
        found: TransposedReads,
        shape: TileShape,
        lanes: int,
        parts: int,
        names: Names,
    ) -> None:
        self._piece, self._found, self._lanes, self._names = piece, found, lanes, names
        self._divided = own = square_blocks(piece, found, shape, lanes, parts)
        self._blocks = (names.var("across", own.rows), names.var("along", own.columns))
        others = {a: e for a, e in piece.axes.items() if a not in (found.across, found.inner)}
        pairs = list(zip(self._blocks, (own.rows, own.columns), strict=True))
        self.loops: dict[Var, int] = {**others, **dict(reversed(pairs) if shape.sources_first else pairs)}

    def block(self) -> Stmt:
        """One block: its squares, those that follow each other in the result one after the other."""
        own, lanes, names = self._divided, self._lanes, self._names
        row, column = names.var("row", own.across), names.var("column", own.along)
        at = self._blocks[0] * own.across + row
        along = (self._blocks[1] * own.along + column) * (lanes * own.squares)
        squares: Stmt = For(column, own.along, self._square(at * lanes, along))
        if own.rows * own.across > own.rows_in_all:
            squares = If(at < own.rows_in_all, squares)
        return For(row, own.across, squares)

    def _square(self, across: Expr, along: Expr) -> Stmt:
        found, lanes, names = self._found, self._lanes, self._names
        height = lanes * self._divided.squares
        tiles: dict[Load, Buffer] = {}
        out: list[Stmt] = []
        for n, ld in enumerate(found.reads):
            name = names.block(f"square{n}_")
            tiles[ld] = names.local(name, (height, lanes), ld.buffer, Scope.REGISTER)
            r, lane = names.var("r", height), names.var("lane", lanes)
            at: Mapping[Var, Expr] = {found.across: across + lane, found.inner: along + r}
            load = Load(ld.buffer, tuple(names.simplify(substitute(i, at)) for i in ld.indices))
            own = For(lane, lanes, Store(tiles[ld], (r, lane), load), LoopKind.VECTORIZED)
            out.append(For(r, height, own, LoopKind.UNROLLED))
        w, h, lane = names.var("w", lanes), names.var("h", self._divided.squares), names.var("lane", lanes)
        here: Mapping[Var, Expr] = {found.across: across + w, found.inner: along + h * lanes + lane}

        def inside(ld: Load) -> Expr | None:
            tile = tiles.get(ld)
            return None if tile is None else Load(tile, (h * lanes + lane, w))

        stores: list[Stmt] = []
        for s in self._piece.stores:
            value = names.simplify(substitute(replace_loads(s.value, inside, {}), here))
            indices = tuple(names.simplify(substitute(i, here)) for i in s.indices)
            stores.append(Store(s.buffer, indices, value))
        own = For(lane, lanes, seq(*stores), LoopKind.VECTORIZED)
        both = For(h, self._divided.squares, own, LoopKind.UNROLLED)
        return seq(*out, For(w, lanes, both, LoopKind.UNROLLED))


def _divisor(n: int, most: int) -> int:
    return max(k for k in range(1, min(n, most) + 1) if n % k == 0)
