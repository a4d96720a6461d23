"""Contractions of bytes in registers for matrices, which stay filled through the whole reduction.

    for … outside …:                                     for … outside, row_0, col_0 …:
        for row, col:                                        zero of the tile                        an intrinsic
            for k: acc[row, col] += …            ──>         for k_0: product of the tile            an intrinsic
    for …: out[…] = epilogue(acc[…])                         near[…] = acc[…]                        an intrinsic
                                                             for row_1, col_1: out[…] = epilogue(near[…])

What such registers hold can only be stored, so the epilogue reads it from memory that is near, and runs on vectors.
Rows and columns are partitioned first where tiles do not divide them: an intrinsic has any shape, and none is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.families.gemm.recipe import (
    Contraction,
    columns_last,
    fuse_group,
    pack_columns,
    pack_rows,
    reduction_order,
)
from tilewright.families.gemm.register_tile import loops_of, take_epilogue
from tilewright.families.gemm.tiles import row_tiles
from tilewright.families.parallel import is_part, is_worth_sharing, parallel_runs
from tilewright.families.tiles.cuts import column_cuts
from tilewright.families.tiles.match import depth_of, find_tiled, tile_product
from tilewright.ir.expr import Scope
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import chain, find_block, top_level
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.cache_write import CacheWrite
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.distribute import Distribute
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.target.matrix_units import MatrixUnit, matrix_unit
from tilewright.target.target import Target
from tilewright.tir.stmt import For, LoopKind, blocks

_EPILOGUE_ROWS = 2  # of a tile whose epilogue is written out: reads of one pass beside the other; bound


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How a contraction runs. Counts are of iterators, sizes of elements."""

    swap: bool  # columns are what the operand without the output's innermost iterator has for itself
    fuse_rows: int  # this many of the last row iterators become one
    fuse_cols: int
    rows: int  # of all tile registers together; their neighbour size takes up what does not divide
    columns: int
    pack_a: bool
    columns_outside: bool  # panels of columns outside, and rows past each of them; or the other way round


@dataclass(frozen=True, slots=True)
class _Nest:
    """A part of the iteration space, by the names of its blocks and loops, the loops from the outermost in."""

    block: str
    move: str  # from the registers to memory
    epilogue: str
    order: tuple[str, ...]


def schedule_tiles(s: Draft, name: str, plan: TilePlan, target: Target) -> None:
    """Tile the contraction block `name`, with what consumes its result, as `plan` says."""
    c = _contraction(s, name, target, plan.swap)
    order = [it.var.name for it in reduction_order(c)]
    epilogue = take_epilogue(s, name, c.store.buffer)
    if plan.fuse_rows > 1:
        fuse_group(s, name, epilogue, c.rows[len(c.rows) - plan.fuse_rows :])
    column = c.cols[-1].var.name
    if plan.fuse_cols > 1:
        column = fuse_group(s, name, epilogue, c.cols[len(c.cols) - plan.fuse_cols :])
    columns_last(s, name, column)
    near = find_block(s.func, name).store.buffer.name
    c = _contraction(s, name, target)
    reduce = tuple(sorted(c.reduce, key=lambda it: order.index(it.var.name)))
    pack_columns(s, c, reduce, min(plan.columns, c.cols[-1].extent))
    if plan.pack_a:
        pack_rows(s, c, reduce, target)
    move = s.apply(CacheWrite(name, near, Scope.REGISTER)).copy
    s.apply(SetScope(near, Scope.LOCAL))
    _tile(s, _contraction(s, name, target), move, epilogue, tuple(it.var.name for it in reduce), plan, target)


def _contraction(s: Draft, name: str, target: Target, swap: bool = False) -> Contraction:
    found = find_tiled(find_block(s.func, name), target, swap)
    assert found is not None, name
    return found


def _tile(
    s: Draft,
    c: Contraction,
    move: str,
    epilogue: str,
    reduce: Sequence[str],
    plan: TilePlan,
    target: Target,
) -> None:
    unit = matrix_unit(target)
    assert unit is not None
    name, loops = c.block.name, loops_of(c.block)
    by_name = {v.name: loop for v, loop in loops.items()}
    outer = tuple(loops[it.var] for it in (*c.batch, *c.cols[:-1]))
    *others, row = [loops[it.var] for it in c.rows] or [s.apply(AddUnitLoop(name)).loop]
    col = loops[c.cols[-1].var]
    inner = (col, *others, row) if plan.columns_outside else (*others, row, col)
    *steps, last = (by_name[n] for n in reduce)
    depth = depth_of(c, unit)
    groups = s.apply(Split(last, (None, depth // c.dot.group, c.dot.group))).names if c.dot else (last,)
    outside = (*outer, *inner)
    is_shared = is_worth_sharing(target.lanes(4), find_block(s.func, name))
    s.apply(Reorder((*outside, *steps, *groups)))
    s.apply(ReverseComputeAt(move, outside[-1]))
    s.apply(ReverseComputeAt(epilogue, outside[-1]))
    cuts = {
        row: _row_cuts(s.loop(row).extent, plan.rows),
        col: column_cuts(s.loop(col).extent, plan.columns, unit.register[1]),
    }
    first, second = sorted((row, col), key=outside.index)
    whole = _Nest(name, move, epilogue, (*outside, *steps, *groups))
    at, then = outside.index(first), outside.index(second)
    for part, size in _cut(s, whole, at, cuts[first]):
        one = s.apply(Split(part.order[at], (None, size))).names
        order = (*part.order[:at], one[0], *part.order[at + 1 : then + 1], one[1], *part.order[then + 1 :])
        s.apply(Reorder(order[at : then + 2]))
        for tile, other in _cut(s, _Nest(part.block, part.move, part.epilogue, order), then, cuts[second]):
            two = s.apply(Split(tile.order[then], (None, other))).names
            sizes = {first: (tile.order[then + 1], size), second: (two[1], other)}
            if first == row:
                s.apply(Reorder((sizes[row][0], sizes[col][0])))
            _fill(s, c, tile, sizes[row], sizes[col], tile.order[then + 2 :], depth, unit, target)
    if not is_shared:
        return
    for n in top_level(s.func):
        # Other nests of the Func (padding, packing) are not ours.
        if isinstance(n, For) and n.kind is LoopKind.SERIAL and any(is_part(b, name) for b in blocks(n)):
            parallel_runs(s, tuple(x.var.name for x in chain(n)[: len(outside)]))


def _row_cuts(extent: int, height: int) -> list[tuple[int, int]]:
    """(end, height) of tiles that cover all rows."""
    cuts: list[tuple[int, int]] = []
    for size, count in row_tiles(extent, height).items():
        cuts.append(((cuts[-1][0] if cuts else 0) + size * count, size))
    return cuts


def _cut(s: Draft, nest: _Nest, at: int, cuts: list[tuple[int, int]]) -> list[tuple[_Nest, int]]:
    """Partition loop number `at`: (part, size of its tiles) for each of `cuts`."""
    if len(cuts) == 1:
        return [(nest, cuts[0][1])]
    s.apply(LoopPartition(nest.order[at], tuple(end for end, _ in cuts[:-1])))
    out: list[tuple[_Nest, int]] = []
    for n, (_, size) in enumerate(cuts):
        order = (*nest.order[:at], *(f"{name}_p{n}" for name in nest.order[at:]))
        out.append((_Nest(f"{nest.block}_p{n}", f"{nest.move}_p{n}", f"{nest.epilogue}_p{n}", order), size))
    return out


def _fill(
    s: Draft,
    c: Contraction,
    nest: _Nest,
    row: tuple[str, int],
    col: tuple[str, int],
    reduce: Sequence[str],
    depth: int,
    unit: MatrixUnit,
    target: Target,
) -> None:
    """One tile: cleared, filled, stored, and what consumes it."""
    (rows, height), (columns, width) = row, col
    inside = s.apply(Distribute(columns))
    around = s.apply(Distribute(rows))
    *steps, groups, group = reduce
    s.apply(Reorder((*steps, rows, columns, groups, group)))
    s.apply(DecomposeReduction(nest.block, steps[0]))
    init = f"{rows}_init" if height > 1 else f"{columns}_init" if width > 1 else f"{nest.block}_init"
    s.apply(Tensorize(init, unit.zero(height, width)))
    s.apply(Tensorize(rows, tile_product(c, unit, height, width, depth)))
    s.apply(Tensorize(around.part(1), unit.store(height, width)))
    _write_out(s, around.part(2), inside.part(2), height, width, target.lanes(4))


def _write_out(s: Draft, row: str, col: str, height: int, width: int, lanes: int) -> None:
    """Some rows of the epilogue, in vectors, next to each other."""
    together = next(n for n in range(_EPILOGUE_ROWS, 0, -1) if not height % n)
    if 1 < together < height:
        row = s.apply(Split(row, (None, together))).names[1]
    if together > 1:
        s.apply(Unroll(row))
    if width > lanes:
        vectors, col = s.apply(Split(col, (None, lanes))).names
        s.apply(Unroll(vectors))
    s.apply(Vectorize(col))
