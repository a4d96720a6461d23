"""Contractions: sums of products whose operands do not share the output's innermost iterator.

    C[batch, rows, cols] += A[batch, rows, k] * B[batch, k, cols]        matmul, convolution, dense layers

The tile is the outer product of MR rows and NR columns, held in registers through the whole reduction; its
epilogue (bias, activation, residual) runs on the registers and stores the result once. B is read in panels
of NR columns, packed once (at compile time where it is a constant). Rows are cut into tiles of two
neighbouring sizes, so that every tile is exact.
"""

import math
from dataclasses import dataclass

from tilewright.ir.expr import Const, Fma, Load, Var, free_vars
from tilewright.ir.layout import Fuse as FuseDims
from tilewright.ir.layout import Layout
from tilewright.ir.layout import Reorder as ReorderDims
from tilewright.ir.layout import Split as SplitDim
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.nest import find_block
from tilewright.schedule.recipes.draft import Draft
from tilewright.schedule.recipes.parallel import ENOUGH_PARTS, parallel_prefix, part_size
from tilewright.schedule.recipes.register_tile import Nest, loops_of, take_epilogue, tile_nest
from tilewright.schedule.recipes.tiles import Tile, choose_tile, row_tiles
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.fuse_iters import FuseIters
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, Store


@dataclass(frozen=True, slots=True)
class Contraction:
    """A block C[…] = fma(a, b, C[…]) and the roles of its iterators, each in the order of the output's
    dimensions.
    """

    block: Block
    store: Store
    a: Load
    b: Load  # the operand that holds the output's innermost iterator
    batch: tuple[Iter, ...]
    rows: tuple[Iter, ...]
    cols: tuple[Iter, ...]
    reduce: tuple[Iter, ...]


def try_contraction(block: Block) -> Contraction | None:
    """The block as a contraction, if it is one with columns of its own (a depthwise convolution has none)."""
    store = block.body
    if not isinstance(store, Store) or not isinstance(store.value, Fma) or block.init is None:
        return None
    a, b = store.value.a, store.value.b
    if not isinstance(a, Load) or not isinstance(b, Load) or a.buffer is b.buffer:
        return None
    by_var = {it.var: it for it in block.iters}
    spatial = [by_var[i] for i in store.indices if isinstance(i, Var) and i in by_var]
    constant = [i for i in store.indices if isinstance(i, Const)]
    if len(spatial) + len(constant) != len(store.indices) or len({it.var for it in spatial}) != len(spatial):
        return None
    uses_a = {v for i in a.indices for v in free_vars(i)}
    uses_b = {v for i in b.indices for v in free_vars(i)}
    inner = spatial[-1].var if spatial else None
    if inner is None or (inner in uses_a) == (inner in uses_b):
        return None
    if inner in uses_a:
        a, b, uses_a, uses_b = b, a, uses_b, uses_a
    reduce = tuple(it for it in block.iters if it.kind is IterKind.REDUCE)
    if not reduce or not all(it.var in uses_a and it.var in uses_b for it in reduce):
        return None
    rows = tuple(it for it in spatial if it.var in uses_a and it.var not in uses_b)
    return Contraction(
        block,
        store,
        a,
        b,
        tuple(it for it in spatial if (it.var in uses_a) == (it.var in uses_b)),
        rows,
        tuple(it for it in spatial if it.var in uses_b and it.var not in uses_a),
        reduce,
    )


def schedule_contraction(s: Draft, name: str, target: Target, constants: frozenset[str]) -> None:
    """Tile the contraction block `name`, with what consumes its result, for one core of `target`."""
    c = _contraction(s.func, name)
    epilogue = take_epilogue(s, name, c.store.buffer)
    _fuse_rows(s, c, epilogue)
    c = _contraction(s.func, name)
    tile = choose_tile(c.rows[-1].extent if c.rows else 1, c.cols[-1].extent, target, c.b.dtype.bytes)
    reduce = _reduction_order(c)
    _pack_columns(s, c, reduce, tile, constants, target)
    c = _contraction(s.func, name)
    _tile(s, c, epilogue, reduce, tile, target)


def _contraction(func: Func, name: str) -> Contraction:
    found = try_contraction(find_block(func, name))
    assert found is not None, name
    return found


def _fuse_rows(s: Draft, c: Contraction, epilogue: str) -> None:
    """Make one row iterator of several where tiles along the last alone would be small, or nothing is lost
    by it.
    """
    if len(c.rows) < 2:
        return
    if min(row_tiles(c.rows[-1].extent)) >= 5 and not _linear_when_fused(c):
        return
    positions = [c.store.indices.index(it.var) for it in c.rows]
    if positions != list(range(positions[0], positions[0] + len(positions))):
        return
    follower = find_block(s.func, epilogue)
    s.apply(FuseIters(c.block.name, tuple(it.var.name for it in c.rows)))
    s.apply(FuseIters(epilogue, tuple(follower.iters[p].var.name for p in positions)))
    accumulator = find_block(s.func, c.block.name).body
    assert isinstance(accumulator, Store)
    s.apply(TransformLayout(accumulator.buffer.name, Layout((FuseDims(positions[0], len(positions)),))))


def _linear_when_fused(c: Contraction) -> bool:
    """Are the addresses of A an arithmetic progression along all rows together?"""
    steps = address_steps(c.a, c.block)
    expected = steps.get(c.rows[-1].var, 0)
    for inner, outer in zip(reversed(c.rows), reversed(c.rows[:-1]), strict=False):
        expected *= inner.extent
        if steps.get(outer.var) != expected:
            return False
    return True


def address_steps(load: Load, block: Block) -> dict[Var, int]:
    """How far the address moves (in elements) with each iterator, where it moves linearly."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps: dict[Var, int] = {}
    for index, stride in zip(load.indices, load.buffer.strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            if isinstance(atom, Var):
                steps[atom] = steps.get(atom, 0) + k * stride
    return steps


def _reduction_order(c: Contraction) -> tuple[Iter, ...]:
    """Innermost the iterator that walks A in the smallest steps and on which neighbouring rows do not
    overlap.

    Unrolled steps of overlapping rows read the same elements; merged loads then live long and spill.
    """
    steps = address_steps(c.a, c.block)
    row_step = steps.get(c.rows[-1].var, 0) if c.rows else 0

    def overlaps(it: Iter) -> bool:
        step = steps.get(it.var, 0)
        return 0 < row_step < step * it.extent and row_step % max(step, 1) == 0 and it.extent > 1

    def key(it: Iter) -> tuple[bool, int]:
        return (not overlaps(it), -steps.get(it.var, 1 << 40))

    return tuple(sorted(c.reduce, key=key))


def _pack_columns(
    s: Draft, c: Contraction, reduce: tuple[Iter, ...], tile: Tile, constants: frozenset[str], target: Target
) -> None:
    """Copy B into panels [batch, other columns, column panel, k…, NR], unless it can be read in place."""
    col = c.cols[-1]
    steps = address_steps(c.b, c.block)
    rows = math.prod(it.extent for it in c.rows)
    lanes = target.lanes(c.b.dtype.bytes)
    in_place = steps.get(col.var) == 1
    if c.b.buffer.name not in constants and in_place:
        spread = max((steps.get(it.var, 0) for it in reduce), default=0) * c.b.dtype.bytes
        # A panel row per page or per power of two misses caches and TLB; a few row tiles do not pay for a copy.
        if rows < 8 * tile.rows or spread < 1024:
            return
    if col.extent < lanes and c.b.buffer.name not in constants and in_place:
        return
    used = {v for i in c.b.indices for v in free_vars(i)}
    outer = [it for it in (*c.batch, *c.cols[:-1]) if it.var in used]
    order = (*outer, *reduce, col)
    copy = s.apply(Reindex(c.block.name, c.b.buffer.name, tuple(it.var.name for it in order)))
    at, width = len(order) - 1, min(tile.columns, col.extent)
    panel = at  # the split dimension moves in front of the reduction
    dims = [*range(len(outer)), panel, *range(len(outer), at), at + 1]
    s.apply(TransformLayout(copy.copy, Layout((SplitDim(at, width), ReorderDims(tuple(dims))))))
    _schedule_pack(s, copy, len(outer), width)


def _schedule_pack(s: Draft, copy: Reindex, outer: int, width: int) -> None:
    """Write the panels one after the other, each in order."""
    *above, last = copy.loops
    lanes = s.apply(Split(last, (None, width)))
    order = (*above[:outer], lanes.names[0], *above[outer:], lanes.names[1])
    s.apply(Reorder(order))
    s.apply(Vectorize(lanes.names[1]))
    parallel_prefix(s, order[: outer + 1])


def _tile(
    s: Draft, c: Contraction, epilogue: str, reduce: tuple[Iter, ...], tile: Tile, target: Target
) -> None:
    loops = loops_of(c.block)
    outer = tuple(loops[it.var] for it in (*c.batch, *c.cols[:-1]))
    *outer_rows, row = [loops[it.var] for it in c.rows] or [s.apply(AddUnitLoop(c.block.name)).loop]
    col = loops[c.cols[-1].var]
    weights = c.b.dtype.bytes * math.prod(it.extent for it in (*c.cols, *c.reduce))
    # Columns outermost keep a panel of B close and stream A past it; rows outermost keep all of B in L2.
    columns_first = weights > target.l2_bytes // 2
    outside = (*outer, col, *outer_rows, row) if columns_first else (*outer, *outer_rows, row, col)
    if outside[0] == row and s.loop(row).extent >= ENOUGH_PARTS * 4 * tile.rows:
        # Parts of many tiles: a tile with a short reduction is over before a part of its own has begun.
        chunk, row = s.apply(Split(row, (None, part_size(s.loop(row).extent)))).names
        outside = (chunk, row, col)
    nest = Nest(c.block.name, epilogue, outside, row, col, tuple(loops[it.var] for it in reduce))
    tile_nest(s, nest, tile, target.lanes(c.b.dtype.bytes))
