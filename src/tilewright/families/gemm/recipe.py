"""Contractions: sums of products whose operands do not share all of the output's iterators.

    C[batch, rows, cols] += A[batch, rows, k] * B[batch, k, cols]        matmul, convolution, dense layers

The tile is the outer product of some rows and columns, held in registers through the whole reduction; its epilogue
(bias, activation, residual) runs on the registers and stores the result once. Everything there is to decide is in a
`GemmPlan`: which iterators make a row and a column, the tile, what is packed, and the order of the loops around. The
recipe takes steps; it chooses nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.cost.caches import LINE_BYTES, SET_BYTES
from tilewright.cost.parallel import ENOUGH_PARTS
from tilewright.families.gemm.dot_products import DotProduct, dot_product
from tilewright.families.gemm.register_tile import ReductionNest, loops_of, take_epilogue, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.parallel import parallel_prefix, part_size
from tilewright.families.stream.elements import schedule_elements
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Fma, Load, Var, free_vars
from tilewright.ir.layout import FuseDims, Layout, PadDim, ReorderDims, SplitDim
from tilewright.ir.simplify import Interval, Simplifier
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import find_block
from tilewright.schedule.steps.add_unit_loop import AddUnitLoop
from tilewright.schedule.steps.fuse_iters import FuseIters
from tilewright.schedule.steps.loop_kind import Vectorize
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.stage import Stage, position_of
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.target.intrinsics import intrinsics_of
from tilewright.target.target import Target
from tilewright.tir.analysis.value_range import value_range
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, Store


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How a contraction runs. Counts are of iterators, sizes of elements."""

    swap: bool  # columns are what the operand without the output's innermost iterator has for itself
    fuse_rows: int  # this many of the last row iterators become one
    fuse_cols: int
    rows: int  # of a register tile; its neighbour size takes up what does not divide
    columns: int
    pack_a: bool
    pack_b: bool
    columns_outside: bool  # panels of columns outside, and rows past each of them; or the other way round
    chunk: int  # this many rows (columns) of the inner loop are kept together, outside of all; 0: all of them
    unroll: int  # multiply-adds written out in a step of the reduction loop, at most
    prefetch: int = 0  # columns are prefetched this many steps before they are read; 0: they are not
    next_panel: bool = False  # a packed panel of columns is prefetched while the one before it is used


@dataclass(frozen=True, slots=True)
class Contraction:
    """A block C[…] = fma(a, b, C[…]), where halves are widened, or C[…] + i32(a) * i32(b), and the roles of its
    iterators, each in the order of the output's dimensions.
    """

    block: Block
    store: Store
    a: Load
    b: Load  # the operand that has the columns
    batch: tuple[Iter, ...]
    rows: tuple[Iter, ...]
    cols: tuple[Iter, ...]
    reduce: tuple[Iter, ...]
    dot: DotProduct | None = None  # of short integers: what adds up their products
    bounded: Expr | None = None  # b as it is clamped, if it is


def _slides(load: Load, cols: tuple[Iter, ...], reduce: tuple[Iter, ...]) -> bool:
    """Do windows slide along the columns? Without rows, what neighbours share is all there is to reuse."""
    wanted = ({it.var for it in cols}, {it.var for it in reduce})
    return any(all(free_vars(i) & some for some in wanted) for i in load.indices)


def try_contraction(block: Block, swap: bool = False) -> Contraction | None:
    """The block as a contraction of floats, if it is one with columns of its own (a depthwise convolution has none)."""
    store = block.try_store
    if store is None or not isinstance(store.value, Fma):
        return None
    return _with_roles(block, store, (store.value.a, store.value.b), swap)


def try_integer_contraction(block: Block, target: Target, swap: bool = False) -> Contraction | None:
    """The block as one of short integers, if the target has an instruction for dot products of them, and these are as
    long as its groups.
    """
    c = _integer_contraction(block, target, swap)
    return None if c is None or c.dot is None or reduction_order(c)[-1].extent % c.dot.group else c


def _integer_contraction(block: Block, target: Target, swap: bool) -> Contraction | None:
    store = block.try_store
    factors = None if store is None else _integer_factors(store)
    if store is None or factors is None:
        return None
    (a, bounded_a), (b, bounded_b) = factors
    c = _with_roles(block, store, (a, b), swap)
    if c is None:
        return None
    bounded = bounded_a if c.b is a else bounded_b
    within = None if bounded is None else (int((known := value_range(bounded)).lo), int(known.hi))
    extent = reduction_order(c)[-1].extent
    dot = dot_product(target, c.a.dtype, c.b.dtype, extent, within) or dot_product(
        target, c.a.dtype, c.b.dtype
    )
    return None if dot is None else replace(c, dot=dot, bounded=bounded)


def try_half_contraction(block: Block, swap: bool = False) -> Contraction | None:
    """The block as one of halves, which are summed up in f32: at least one operand is kept in 16 bits."""
    store = block.try_store
    if store is None or not isinstance(store.value, Fma) or store.value.dtype is not DType.F32:
        return None
    factors = tuple(
        e.a if isinstance(e, Cast) and e.a.dtype.is_half else e for e in store.value.children()[:2]
    )
    c = _with_roles(block, store, (factors[0], factors[1]), swap)
    return c if c is not None and (c.a.dtype.is_half or c.b.dtype.is_half) else None


def find_contraction(block: Block, target: Target, swap: bool = False) -> Contraction | None:
    """The block as a contraction of any types that register tiles are made for."""
    return (
        try_contraction(block, swap)
        or try_half_contraction(block, swap)
        or try_integer_contraction(block, target, swap)
    )


def _integer_factors(store: Store) -> tuple[tuple[Expr, Expr | None], tuple[Expr, Expr | None]] | None:
    """a and b of C[…] + i32(a) * i32(b), each with what it is clamped to, if it is."""
    total = store.value
    if total.dtype is not DType.I32 or not isinstance(total, Binary) or total.op is not BinaryOp.ADD:
        return None
    here = Load(store.buffer, store.indices)
    product = total.b if total.a is here else total.a if total.b is here else None
    if not isinstance(product, Binary) or product.op is not BinaryOp.MUL:
        return None
    a, b = _integer_factor(product.a), _integer_factor(product.b)
    return None if a is None or b is None else (a, b)


def _integer_factor(e: Expr) -> tuple[Expr, Expr | None] | None:
    """x of i32(x), or of min(max(i32(x), …), …)."""
    match e:
        case Cast():
            return e.a, None
        case Binary(op=BinaryOp.MIN, a=Binary(op=BinaryOp.MAX, a=Cast() as inside, b=Const()), b=Const()):
            return inside.a, e
        case _:
            return None


def _with_roles(block: Block, store: Store, factors: tuple[Expr, Expr], swap: bool) -> Contraction | None:
    a, b = factors
    if block.init is None or not isinstance(a, Load) or not isinstance(b, Load) or a.buffer is b.buffer:
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
    if (inner in uses_a) != swap:
        a, b, uses_a, uses_b = b, a, uses_b, uses_a
    reduce = tuple(it for it in block.iters if it.kind is IterKind.REDUCE)
    if not reduce or not all(it.var in uses_a and it.var in uses_b for it in reduce):
        return None
    rows = tuple(it for it in spatial if it.var in uses_a and it.var not in uses_b)
    cols = tuple(it for it in spatial if it.var in uses_b and it.var not in uses_a)
    if not cols or (not rows and _slides(b, cols, reduce)):
        return None
    batch = tuple(it for it in spatial if (it.var in uses_a) == (it.var in uses_b))
    return Contraction(block, store, a, b, batch, rows, cols, reduce)


def schedule_contraction(s: Draft, name: str, plan: GemmPlan, target: Target) -> None:
    """Tile the contraction block `name`, with what consumes its result, as `plan` says."""
    c = _contraction(s.func, name, target, plan.swap)
    # What fused rows would not tell any more: whether they overlap, and what lies between them.
    order = [it.var.name for it in reduction_order(c)]
    between = {it.var.name for it in _between_rows(c)}
    epilogue = take_epilogue(s, name, c.store.buffer)
    if plan.fuse_rows > 1:
        fuse_group(s, name, epilogue, c.rows[len(c.rows) - plan.fuse_rows :])
    column = c.cols[-1].var.name
    if plan.fuse_cols > 1:
        column = fuse_group(s, name, epilogue, c.cols[len(c.cols) - plan.fuse_cols :])
    columns_last(s, name, column)
    c = _contraction(s.func, name, target)
    reduce = tuple(sorted(c.reduce, key=lambda it: order.index(it.var.name)))
    dot = c.dot
    if plan.pack_b:
        pack_columns(s, c, reduce, min(plan.columns, c.cols[-1].extent))
    if plan.pack_a:
        pack_rows(s, c, reduce, target)
    c = replace(_contraction(s.func, name, target), dot=dot)  # which copies are made for
    _tile(s, c, epilogue, reduce, between, plan, target)


def _between_rows(c: Contraction) -> tuple[Iter, ...]:
    """The batch iterators that move in A by less than a row does: groups of channels, of which each pixel has all."""
    steps = load_strides(c.a, c.block)
    row = steps.get(c.rows[-1].var, 0) if c.rows else 0
    return tuple(it for it in c.batch if 0 < steps.get(it.var, 0) < row)


def _contraction(func: Func, name: str, target: Target, swap: bool = False) -> Contraction:
    block = find_block(func, name)
    found = (
        try_contraction(block, swap)
        or try_half_contraction(block, swap)
        or _integer_contraction(block, target, swap)
    )
    assert found is not None, name
    return found


def fuse_group(s: Draft, block: str, epilogue: str, group: tuple[Iter, ...]) -> str:
    """Make one iterator of several, in the block, in what consumes its result, and in the accumulator between; returns
    that of the block.
    """
    accumulator = find_block(s.func, block).store
    at = [accumulator.indices.index(it.var) for it in group]
    follower = find_block(s.func, epilogue)
    fused = s.apply(FuseIters(block, tuple(it.var.name for it in group)))
    s.apply(FuseIters(epilogue, tuple(follower.iters[p].var.name for p in at)))
    rank = len(accumulator.indices)
    order = [*(d for d in range(rank) if d not in at[1:] and d < at[0]), *at]
    order += [d for d in range(rank) if d not in order]
    fuse = FuseDims(order.index(at[0]), len(at))
    moves = (fuse,) if order == list(range(rank)) else (ReorderDims(tuple(order)), fuse)
    s.apply(TransformLayout(accumulator.buffer.name, Layout(moves)))
    return fused.iter


def columns_last(s: Draft, block: str, column: str) -> None:
    """A register holds neighbouring columns: they are the accumulator's last dimension."""
    store = find_block(s.func, block).store
    (at,) = [d for d, i in enumerate(store.indices) if isinstance(i, Var) and i.name == column]
    if at != len(store.indices) - 1:
        order = (*(d for d in range(len(store.indices)) if d != at), at)
        s.apply(TransformLayout(store.buffer.name, Layout((ReorderDims(order),))))


def load_strides(load: Load, block: Block) -> dict[Var, int]:
    """How far the address moves (in elements) with each iterator, where it moves linearly."""
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    steps: dict[Var, int] = {}
    for index, stride in zip(load.indices, load.buffer.strides, strict=True):
        for atom, k in simplify.linear(index).terms:
            if isinstance(atom, Var):
                steps[atom] = steps.get(atom, 0) + k * stride
    return steps


def reduction_order(c: Contraction) -> tuple[Iter, ...]:
    """Innermost the iterator that walks A in the smallest steps and on which neighbouring rows do not
    overlap.

    Unrolled steps of overlapping rows read the same elements; merged loads then live long and spill.
    """
    steps = load_strides(c.a, c.block)
    row_step = steps.get(c.rows[-1].var, 0) if c.rows else 0

    def overlaps(it: Iter) -> bool:
        step = steps.get(it.var, 0)
        return 0 < row_step < step * it.extent and row_step % max(step, 1) == 0 and it.extent > 1

    def key(it: Iter) -> tuple[bool, int]:
        return (not overlaps(it), -steps.get(it.var, 1 << 40))

    return tuple(sorted(c.reduce, key=key))


# --------------------------------------------------------------------------------------------------------- packing


def _used(load: Load) -> set[Var]:
    return {v for i in load.indices for v in free_vars(i)}


def pack_columns(s: Draft, c: Contraction, reduce: tuple[Iter, ...], width: int) -> None:
    """Copy B into panels [batch, other columns, column panel, k…, width]."""
    col, used = c.cols[-1], _used(c.b)
    outer = [it for it in (*c.batch, *c.cols[:-1]) if it.var in used]
    order = (*outer, *reduce, col)
    copy = _copied(s, c, c.b, order)
    at = len(order) - 1
    # The panels move in front of the reduction; of dot products, the groups go behind the columns.
    if c.dot is None:
        dims = (*range(len(outer)), at, *range(len(outer), at), at + 1)
        layout = Layout((SplitDim(at, width), ReorderDims(dims)))
    else:
        dims = (*range(len(outer)), at + 1, *range(len(outer), at), at + 2, at)
        layout = Layout((SplitDim(at, width), SplitDim(at - 1, c.dot.group), ReorderDims(dims)))
    s.apply(TransformLayout(copy.copy, layout))
    *above, last = copy.loops
    if not col.extent % width:
        _write_panels(s, tuple(above), last, len(outer), width)
        return
    # What is left of a panel is written on its own, so that the others need no mask.
    s.apply(Reorder((last, *above)))
    full, rest = s.apply(LoopPartition(last, (col.extent // width * width,))).names
    _write_panels(s, tuple(f"{n}_p0" for n in above), full, len(outer), width)
    s.apply(Reorder((*(f"{n}_p1" for n in above), rest)))
    s.apply(Vectorize(rest))


def _copied(s: Draft, c: Contraction, operand: Load, order: Sequence[Iter]) -> Reindex | Stage:
    """Copy an operand into dimensions in this order, in the type that register tiles read it in."""
    names, wanted = tuple(it.var.name for it in order), tile_type(c, operand)
    if operand is c.b and c.bounded is not None:
        value = find_block(s.func, c.block.name).store.value
        return s.apply(Stage(c.block.name, position_of(value, c.bounded), names, wanted))
    if wanted is operand.dtype:
        return s.apply(Reindex(c.block.name, operand.buffer.name, names))
    value = find_block(s.func, c.block.name).store.value
    widened = Cast(c.store.buffer.dtype, operand)
    return s.apply(Stage(c.block.name, position_of(value, widened), names, wanted))


def tile_type(c: Contraction, operand: Load) -> DType:
    """The type that a register tile reads an operand in. Halves of a vector are widened in registers; single ones, each
    of which would be widened for itself, in a copy.
    """
    is_vector = operand is c.b
    if c.dot is not None:
        return c.dot.b if is_vector else c.dot.a
    return operand.dtype if is_vector else c.store.buffer.dtype


def _write_panels(s: Draft, above: tuple[str, ...], last: str, outer: int, width: int) -> None:
    """Write panels of `width` columns, one after the other."""
    panel, lanes = s.apply(Split(last, (None, width))).names
    around = (*above[:outer], panel)
    s.apply(Reorder((*around, *above[outer:], lanes)))
    s.apply(Vectorize(lanes))
    parallel_prefix(s, around)


def pack_rows(s: Draft, c: Contraction, reduce: tuple[Iter, ...], target: Target) -> None:
    """Copy A into rows [batch, rows…, k…] that follow each other, a line apart where they would share cache sets."""
    used = _used(c.a)
    order = [it for it in (*c.batch, *c.rows) if it.var in used] + list(reduce)
    copy = _copied(s, c, c.a, order)
    bytes_each = tile_type(c, c.a).bytes
    if math.prod(it.extent for it in reduce) * bytes_each % SET_BYTES == 0 and len(reduce) == 1:
        s.apply(TransformLayout(copy.copy, Layout((PadDim(len(order) - 1, 0, LINE_BYTES // bytes_each),))))
    schedule_elements(s, copy.copy, target)


# ------------------------------------------------------------------------------------------------------------ loops


def _tile(
    s: Draft,
    c: Contraction,
    epilogue: str,
    reduce: tuple[Iter, ...],
    between: Collection[str],
    plan: GemmPlan,
    target: Target,
) -> None:
    loops = loops_of(c.block)
    outer = tuple(loops[it.var] for it in (*c.batch, *c.cols[:-1]))
    *others, row = [loops[it.var] for it in c.rows] or [s.apply(AddUnitLoop(c.block.name)).loop]
    col = loops[c.cols[-1].var]
    inner = row if plan.columns_outside else col
    chunks: tuple[str, ...] = ()
    if plan.chunk and plan.chunk < s.loop(inner).extent:
        chunk, rest = s.apply(Split(inner, (None, plan.chunk))).names
        chunks = (chunk,)
        row, col = (rest, col) if plan.columns_outside else (row, rest)
    if plan.columns_outside and chunks:
        # A chunk of rows stays in the cache for all that lies between them.
        last = tuple(loops[it.var] for it in c.batch if it.var.name in between)
        outside = (*(n for n in outer if n not in last), *others, *chunks, *last, col, row)
    elif plan.columns_outside:
        outside = (*outer, col, *others, row)
    else:
        outside = (*outer, *chunks, *others, row, col)
    if outside[0] == row and s.loop(row).extent >= ENOUGH_PARTS * 4 * plan.rows:
        # Parts of many tiles: a tile with a short reduction is over before a part of its own has begun.
        part, row = s.apply(Split(row, (None, part_size(s.loop(row).extent)))).names
        outside = (part, row, *outside[1:])
    steps = tuple(loops[it.var] for it in reduce)
    if c.dot is not None:
        steps = (*steps[:-1], *s.apply(Split(steps[-1], (None, c.dot.group))).names)
    nest = ReductionNest(c.block.name, epilogue, outside, row, col, steps)
    lanes = target.lanes(c.store.buffer.dtype.bytes)
    tile, intrinsics = RegisterTile(plan.rows, plan.columns), register_tiles(target, c.b.dtype)
    dots = None if c.dot is None else c.dot.names
    next_panel = 0
    if plan.next_panel and plan.pack_b:  # all that stays while rows pass by
        together = min(plan.columns, s.loop(col).extent) if plan.columns_outside else s.loop(col).extent
        next_panel = math.prod(it.extent for it in reduce) * together
    tile_nest(
        s, nest, tile, lanes, plan.unroll, intrinsics, dots, prefetch=plan.prefetch, next_panel=next_panel
    )


@lru_cache(maxsize=16)
def register_tiles(target: Target, dtype: DType) -> Mapping[tuple[int, int], str]:
    """The target's intrinsics for C[rows, columns] += A[rows, k] · B[k, columns] with any k, by rows and columns."""
    found: dict[tuple[int, int], str] = {}
    for i in intrinsics_of(target):
        c, *operands = i.meaning.params
        tile = i.body is not None and len(c.shape) == 2 and len(operands) == 2 and i.free
        if tile and all(b.dtype is dtype for b in i.meaning.params):
            found[c.shape[0], c.shape[1]] = i.name
    return found


def strides_along(load: Load, block: Block, group: tuple[Iter, ...]) -> int | None:
    """How far the address moves per step along all of `group` as one iterator; None if not by the same everywhere."""
    if not group:
        return 0
    simplify = Simplifier({it.var: Interval(0, it.extent - 1) for it in block.iters})
    wanted = {it.var for it in group}
    for index in load.indices:
        if any(
            not isinstance(atom, Var) and _mentions(atom, wanted) for atom, _ in simplify.linear(index).terms
        ):
            return None
    steps = load_strides(load, block)
    expected = steps.get(group[-1].var, 0)
    first = expected
    for inner, outer in zip(reversed(group), reversed(group[:-1]), strict=False):
        expected *= inner.extent
        if steps.get(outer.var, 0) != expected:
            return None
    return first


def _mentions(e: Expr, wanted: set[Var]) -> bool:
    return not wanted.isdisjoint(free_vars(e))
