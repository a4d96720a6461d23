"""The register tiles of a reduction with its output's innermost dimension in vector lanes, and how long each takes."""

from math import inf, prod
from typing import NamedTuple

from tilewright.cost.terms import TermName
from tilewright.families.gemm.tiles import column_tiles, row_tiles
from tilewright.families.window.cost import (
    ROWS,
    UNROLLS,
    VECTORS,
    LaneOperand,
    TileCycles,
    fits_registers,
    steps_written_out,
    tile_cycles,
)
from tilewright.families.window.recipe import lane_and_rows, operand_loads
from tilewright.target.target import Target
from tilewright.tir.stmt import Block, IterKind

_MOST_WRITTEN = 8  # steps of a loop that are written out where not all of them are; given by `register_tile`


class LaneTile(NamedTuple):
    rows: int
    vectors: int
    unroll: int  # multiply-adds written out in a step, at most


class LaneTiles:
    """The tiles of one block. `columns`, where it is not None, is how many elements of the innermost dimension are
    reduced at a time; otherwise all are.
    """

    def __init__(self, block: Block, target: Target) -> None:
        inner, row = lane_and_rows(block)
        self._target = target
        self.lanes = target.lanes(block.store.buffer.dtype.bytes)
        self.rows, self.columns = 1 if row is None else row.extent, inner.extent
        self.taps = tuple(it.extent for it in block.iters if it.kind is IterKind.REDUCE)
        ours = (inner, row)
        others = [it for it in block.iters if it.kind is IterKind.SPATIAL and it not in ours]
        self.times = prod(it.extent for it in others)
        side = None if row is None else row.var
        self._operands = [LaneOperand(ld, block, side, inner.var) for ld in operand_loads(block)]
        self._cycles_of: dict[tuple[int, int, int], TileCycles] = {}
        self._fitting: dict[tuple[int, int], bool] = {}
        self._usual: dict[int | None, dict[LaneTile, float]] = {}

    def seconds(self, tile: LaneTile, columns: int | None = None) -> float:
        """Infinite if the tile is larger than the output, or than the registers."""
        if not self.fits(tile.rows, tile.vectors, columns):
            return inf
        cycles = sum(
            n * self._cycles(size, width, tile.unroll).total for (size, width), n in self._cut(tile, columns)
        )
        return self.times * cycles / self._target.machine.hertz

    def terms(self, tile: LaneTile, columns: int | None = None) -> dict[TermName, float]:
        """What these seconds are made of; nothing, if they are infinite."""
        found: dict[TermName, float] = {"arithmetic": 0.0, "edges": 0.0}
        if self.fits(tile.rows, tile.vectors, columns):
            for (size, width), n in self._cut(tile, columns):
                total, edges = self._cycles(size, width, tile.unroll)
                found["arithmetic"] += self.times * n * (total - edges) / self._target.machine.hertz
                found["edges"] += self.times * n * edges / self._target.machine.hertz
        return found

    def usual(self, columns: int | None = None) -> dict[LaneTile, float]:
        """The tiles that a schedule is chosen from by default, with the time of each."""
        if columns not in self._usual:
            every = [LaneTile(r, v, u) for r in ROWS for v in VECTORS for u in UNROLLS]
            self._usual[columns] = {t: self.seconds(t, columns) for t in every}
        return self._usual[columns]

    def best(self, columns: int | None = None) -> tuple[LaneTile, float]:
        """The cheapest of them."""
        seconds = self.usual(columns)
        best = min(seconds, key=lambda t: seconds[t])
        return best, seconds[best]

    def fits(self, rows: int, vectors: int, columns: int | None = None) -> bool:
        columns = self.columns if columns is None else columns
        if rows > self.rows or (vectors - 1) * self.lanes >= columns:
            return False
        size = rows, vectors
        if size not in self._fitting:
            self._fitting[size] = fits_registers(self._operands, prod(self.taps), size, self._target)
        return self._fitting[size]

    def written_out(self, tile: LaneTile, columns: int | None = None) -> tuple[int, ...]:
        """Steps that the tile and the smaller ones at the edges have written out: those that agree in it are the same
        code, whatever bound they have.
        """
        return tuple(self._written_out(r * v, tile.unroll) for (r, v), _ in self._cut(tile, columns))

    def _cut(self, tile: LaneTile, columns: int | None) -> list[tuple[tuple[int, int], int]]:
        """(rows, vectors) of all tiles, and how many there are of each."""
        columns = self.columns if columns is None else columns
        return [
            ((size, width), n * m)
            for size, n in row_tiles(self.rows, tile.rows).items()
            for width, m in column_tiles(columns, tile.vectors, self.lanes).items()
        ]

    def _written_out(self, work: int, unroll: int) -> int:
        """As `register_tile` does it: whole loops, and a part of the next one."""
        whole = 1
        for extent in reversed(self.taps):
            if extent * work * whole > unroll:
                divides = [n for n in range(1, _MOST_WRITTEN + 1) if extent % n == 0]
                return whole * max(n for n in divides if n == 1 or n * work * whole <= unroll)
            whole *= extent
        return whole

    def _cycles(self, rows: int, vectors: int, unroll: int) -> TileCycles:
        key = rows, vectors, steps_written_out(self.taps, rows * vectors, unroll)
        if key not in self._cycles_of:
            self._cycles_of[key] = tile_cycles(
                self._operands, self.taps, (rows, vectors), unroll, self.lanes, self._target.machine
            )
        return self._cycles_of[key]
