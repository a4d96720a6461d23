"""A tile of rows and columns adds up one block after the other in registers: integers first, then floats.

for columns, rows in tiles:
    Y = 0
    for b:
        S = 0
        for q: S += x[…] · w[…]         by the instruction, a vector of columns at a time
        Y += f32(S) · scale[…] …
    store Y
"""

from dataclasses import dataclass

from tilewright.families.block_products.match import BlockProducts
from tilewright.families.gemm.register_tile import loops_of, take_epilogue
from tilewright.families.parallel import parallel_prefix
from tilewright.ir.expr import Scope, Var
from tilewright.ir.layout import Layout, ReorderDims, SplitDim
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block, loops_above
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.loop_kind import Unroll, Vectorize
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.reverse_compute_at import ReverseComputeAt
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.tensorize import Tensorize
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.tir.stmt import For, IterKind


@dataclass(frozen=True, slots=True)
class BlockTile:
    rows: int
    vectors: int


def schedule_block_products(s: Draft, p: BlockProducts, tile: BlockTile) -> None:
    lanes = p.intrinsic.meaning.params[0].size
    width = tile.vectors * lanes
    sums, total, made = p.sums.name, p.total.name, p.sums.store.buffer.name
    _pack(s, p, width)
    epilogue = take_epilogue(s, total, p.total.store.buffer)
    loops = loops_of(find_block(s.func, total))
    over = loops[p.over.var]
    row = s.apply(AddUnitLoop(total)).loop if p.row is None else loops[p.row.var]
    rows, row = s.apply(Split(row, (None, tile.rows))).names
    columns, vector, lane = s.apply(Split(loops[p.column.var], (None, tile.vectors, lanes))).names
    s.apply(Reorder((columns, rows, over, row, vector, lane)))
    s.apply(ReverseComputeAt(epilogue, rows))
    s.apply(ComputeAt(sums, over))
    s.apply(SetScope(made, Scope.REGISTER))
    s.apply(DecomposeReduction(total, over))
    for name in (row, vector):
        s.apply(Unroll(name))
    s.apply(Vectorize(lane))
    _write_out(s, f"{total}_init", rows, lanes)
    _add_up(s, p, over, lanes)
    _write_out(s, epilogue, rows, lanes)
    parallel_prefix(s, (columns, rows))


def _pack(s: Draft, p: BlockProducts, width: int) -> None:
    """Weights and their scales in panels of columns: [panel, block, …, columns, …]."""
    names = tuple(i.name for i in p.weights.indices if isinstance(i, Var))
    copy = s.apply(Reindex(p.sums.name, p.weights.buffer.name, names)).copy
    s.apply(TransformLayout(copy, Layout((SplitDim(0, width), ReorderDims((0, 2, 3, 1, 4))))))
    for scale in p.scales:
        by_block = (p.column.var.name, p.over.var.name)
        copy = s.apply(Reindex(p.total.name, scale.buffer.name, by_block)).copy
        s.apply(TransformLayout(copy, Layout((SplitDim(0, width), ReorderDims((0, 2, 1))))))


def _inside(s: Draft, block: str, around: str) -> list[For]:
    """The loops around a block that are inside of another, from the outermost in, but for those of one iteration."""
    loops = loops_above(s.func, find_block(s.func, block))
    at = [n.var.name for n in loops].index(around)
    return [n for n in loops[at + 1 :] if n.extent > 1]


def _write_out(s: Draft, block: str, around: str, lanes: int) -> None:
    """The elements of a tile, columns in vectors."""
    *others, column = _inside(s, block, around)
    for n in others:
        s.apply(Unroll(n.var.name))
    lane = column.var.name
    if column.extent > lanes:
        vector, lane = s.apply(Split(lane, (None, lanes))).names
        s.apply(Unroll(vector))
    s.apply(Vectorize(lane))


def _add_up(s: Draft, p: BlockProducts, over: str, lanes: int) -> None:
    """The integers of a block, by the instruction: its groups one after the other, for all vectors of the tile."""
    name, column = p.sums.name, next(i for i in reversed(p.sums.store.indices) if isinstance(i, Var))
    own = {it.var: f"{name}_{n}" for n, it in enumerate(p.sums.iters)}  # as ComputeAt names them
    *steps, group = [own[it.var] for it in p.sums.iters if it.kind is IterKind.REDUCE]
    there = {n.var.name for n in _inside(s, name, over)}
    rows = [
        own[i] for i in p.sums.store.indices if isinstance(i, Var) and i is not column and own[i] in there
    ]
    steps, lane, tile = [n for n in steps if n in there], own[column], rows
    if s.loop(lane).extent > lanes:
        vector, lane = s.apply(Split(lane, (None, lanes))).names
        tile = [*rows, vector]
    s.apply(Reorder((*steps, *tile, group, lane)))
    s.apply(DecomposeReduction(name, (*steps, group)[0]))
    _write_out(s, f"{name}_init", over, lanes)
    for n in (*steps, *tile):
        s.apply(Unroll(n))
    s.apply(Tensorize(group, p.intrinsic.name))
