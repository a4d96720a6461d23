"""Two contractions in a row, the second over rows that are derived from those of the first: attention.

    S[r, j] = Σ q[r, k] · k[j, k]                         for blocks of rows:
    m[r] = max S[r, …]; P[r, j] = exp(S[r, j] - m[r]) ──>     S of these rows, in register tiles
    y[r, d] = Σ P[r, j] · v[j, d]                             for each row: m, P, …, in vectors
                                                              y of these rows, in register tiles

All of S is never there: a block of rows stays near from the first GEMM to the last. Nothing is computed twice, since
what a row of the last GEMM needs are rows of its own. Workers share the blocks. Where a block of rows with all keys
would not stay near, keys are taken up in blocks too (`RollingUpdate`).
"""

import itertools
from collections.abc import Container
from dataclasses import dataclass
from math import prod

from tilewright.cost.caches import LINE_BYTES, SET_BYTES
from tilewright.cost.parallel import TEAMS
from tilewright.families.attention.row_lanes import vectorize_row
from tilewright.families.gemm.recipe import (
    Contraction,
    reduction_order,
    register_tiles,
    try_contraction,
)
from tilewright.families.gemm.register_tile import ReductionNest, join_epilogue, take_epilogue, tile_nest
from tilewright.families.gemm.tiles import RegisterTile
from tilewright.families.inline import single_consumer
from tilewright.families.parallel import (
    is_worth_sharing,
    parallel_prefix,
    part_size,
)
from tilewright.families.stream.elements import move_near, schedule_elements
from tilewright.ir.expr import Buffer, Expr, Scope, Var, free_vars, loads
from tilewright.ir.layout import Layout, PadDim, ReorderDims, SplitDim
from tilewright.schedule.draft import Draft
from tilewright.schedule.find import chain as chain_of
from tilewright.schedule.find import find_block, loops_above, top_level
from tilewright.schedule.steps.compute_at import ComputeAt
from tilewright.schedule.steps.decompose_reduction import DecomposeReduction
from tilewright.schedule.steps.fuse import Fuse
from tilewright.schedule.steps.loop_kind import Parallel
from tilewright.schedule.steps.loop_partition import LoopPartition
from tilewright.schedule.steps.merge import Merge
from tilewright.schedule.steps.reindex import Reindex
from tilewright.schedule.steps.reorder import Reorder
from tilewright.schedule.steps.rolling_update import RollingUpdate
from tilewright.schedule.steps.set_scope import SetScope
from tilewright.schedule.steps.split import Split
from tilewright.schedule.steps.transform_layout import TransformLayout
from tilewright.support.errors import ScheduleError
from tilewright.target.target import Target
from tilewright.tir.func import Func
from tilewright.tir.stmt import (
    Block,
    For,
    If,
    IterKind,
    Seq,
    Stmt,
    Store,
    blocks,
    loops,
    stmt_exprs,
    walk_stmts,
)

# Heads from which on workers share whole ones, so that what all rows of a head read is made and kept by one of them.
# Counted: two for each of the largest team that choices are judged by.
_ENOUGH_HEADS = 2 * max(TEAMS)


@dataclass(frozen=True, slots=True)
class AttentionChain:
    """Both contractions with the blocks that take their results up, and what is between, by name and in order."""

    first: Contraction
    second: Contraction
    gemms: tuple[tuple[str, ...], tuple[str, ...]]
    between: tuple[str, ...]

    @property
    def is_movable(self) -> bool:
        """Are there rows, and one iterator of columns in each?"""
        return all(c.rows and len(c.cols) == 1 for c in (self.first, self.second))


@dataclass(frozen=True, slots=True)
class ContractionTilePlan:
    """How one of the contractions is tiled."""

    tile: RegisterTile
    unroll: int  # multiply-adds written out in a step of the reduction loop, at most
    pack: bool  # its columns are copied into panels beforehand
    columns_outside: bool  # panels of columns outside, and rows past each of them; or the other way round


@dataclass(frozen=True, slots=True)
class ChainPlan:
    rows: int  # of a block; what does not divide is a block of its own
    keys: int  # likewise, if they are taken up in blocks; 0: all together
    skip: bool  # blocks of keys that no row of a block sees
    first: ContractionTilePlan
    second: ContractionTilePlan
    accumulators: int  # vectors of partial results of a reduction along a row


def try_attention_chain(func: Func) -> AttentionChain | None:
    """The Func as such a chain, if it has two contractions and the second reads rows made from the first."""
    every = list(blocks(func.body))
    found = [c for b in every if b.is_reduction and (c := try_contraction(b)) is not None]
    if len(found) != 2:
        return None
    first, second = found
    after = _after(func, first.block.name)
    names = [b.name for b in after]
    made = {n.buffer for b in after for n in walk_stmts(b) if isinstance(n, Store)}
    if second.a.buffer not in made & set(func.locals) or second.b.buffer in made:
        return None
    at = names.index(second.block.name)
    if any(_reads_windows(b) for b in after[1:at]):  # depthwise, not rows: bands are for these
        return None
    follower = single_consumer(func, first.store.buffer)
    taken = (follower.name,) if follower is not None and not follower.is_reduction else ()
    between = tuple(n for n in names[:at] if n not in taken)
    return AttentionChain(first, second, ((first.block.name, *taken), tuple(names[at:])), between)


def _reads_windows(block: Block) -> bool:
    """Is it a reduction over neighbours?"""
    over = {it.var for it in block.iters if it.kind is IterKind.REDUCE}
    read = [i for n in walk_stmts(block) for e in stmt_exprs(n) for ld in loads(e) for i in ld.indices]
    return any(len(free_vars(i)) > 1 and free_vars(i) & over for i in read)


def _after(func: Func, name: str) -> list[Block]:
    """The block, and those that read what it makes, directly or through others, in order."""
    made: set[Buffer] = set()
    found: list[Block] = []
    for b in blocks(func.body):
        if b.name == name or any(
            ld.buffer in made for n in walk_stmts(b) for e in stmt_exprs(n) for ld in loads(e)
        ):
            made |= {n.buffer for n in walk_stmts(b) if isinstance(n, Store)}
            found.append(b)
    return found


@dataclass(frozen=True, slots=True)
class _Gemm:
    """A contraction that has been moved: its block, by what the names of its loops begin with, and what takes its
    results up.
    """

    block: str
    loops: str
    follower: str
    plan: ContractionTilePlan


def schedule_chain(s: Draft, chain: AttentionChain, plan: ChainPlan, target: Target) -> None:
    """Schedule the whole Func, whose blocks are as they were prepared; what is no part of the chain stays."""
    one, two = chain.first.block.name, chain.second.block.name
    copies = [
        _pack(s, c, p.tile.columns)
        for c, p in ((chain.first, plan.first), (chain.second, plan.second))
        if p.pack
    ]
    if not plan.keys:
        _part_rows(s, chain.second.a.buffer)
    scores = _Gemm(one, one, take_epilogue(s, one, chain.first.store.buffer), plan.first)
    context = _Gemm(two, two, take_epilogue(s, two, chain.second.store.buffer), plan.second)
    moved = [b.name for b in _after(s.func, one)]
    moved = moved[: moved.index(context.follower)]
    block, inner = _move_rows(s, chain.second, context.follower, moved, plan.rows)
    join_epilogue(s, _nest(s, scores, ""))
    keys, has_rest = "", False
    if plan.keys:
        has_rest = chain.first.cols[-1].extent % plan.keys > 0
        keys, context = _divide_keys(s, context, RollingUpdate(two, plan.keys, plan.skip))
    else:
        join_epilogue(s, _nest(s, context, ""))
    suffixes = _cut_rest(s, block, chain.second.rows[-1].extent, plan.rows)
    lanes, tiles = target.lanes(chain.first.b.dtype.bytes), register_tiles(target, chain.first.b.dtype)
    for suffix in suffixes:
        for loop in (inner, keys) if keys else (inner,):
            _schedule_body(s, f"{loop}{suffix}", plan.accumulators, target)
        for p, rest in itertools.product((scores, context), ("", "_rest") if has_rest else ("",)):
            nest, how = _nest(s, p, f"{rest}{suffix}"), p.plan
            tile_nest(s, nest, how.tile, lanes, how.unroll, tiles, is_shared=False, is_joined=True)
    if is_worth_sharing(target.lanes(4), chain.first.block, chain.second.block):
        _share(s, [f"{inner}{suffix}" for suffix in suffixes])
    for copy in copies:
        _schedule_copy(s, copy, target)


# ------------------------------------------------------------------------------------------------------------ layouts


@dataclass(frozen=True, slots=True)
class _Copy:
    """A block that copies columns into panels; the last of its loops goes along the columns."""

    block: str
    loops: tuple[str, ...]
    width: int


def _pack(s: Draft, c: Contraction, width: int) -> _Copy:
    """Copy the columns into panels [batch, panel, k…, width]."""
    col, reduce = c.cols[-1], reduction_order(c)
    used = {v for i in c.b.indices for v in free_vars(i)}
    outer = [it for it in c.batch if it.var in used]
    order = (*outer, *reduce, col)
    copy = s.apply(Reindex(c.block.name, c.b.buffer.name, tuple(it.var.name for it in order)))
    at = len(order) - 1
    dims = (*range(len(outer)), at, *range(len(outer), at), at + 1)
    width = min(width, col.extent)
    s.apply(TransformLayout(copy.copy, Layout((SplitDim(at, width), ReorderDims(dims)))))
    return _Copy(copy.copy, copy.loops, width)


def _schedule_copy(s: Draft, copy: _Copy, target: Target) -> None:
    """Make panels inside the parts that read them, if each has its own; what is left of a panel apart, so that the
    others need no mask.
    """
    is_near = move_near(s, copy.block, target)
    is_shared = not is_near and is_worth_sharing(target.lanes(4), find_block(s.func, copy.block))
    schedule_elements(s, copy.block, target, is_shared=is_shared)


def _part_rows(s: Draft, rows: Buffer) -> None:
    """Rows that would fall into the same sets of the cache go a line apart: a tile reads several at a time."""
    if rows.shape[-1] * rows.dtype.bytes % SET_BYTES == 0:
        pad = PadDim(len(rows.shape) - 1, 0, LINE_BYTES // rows.dtype.bytes)
        s.apply(TransformLayout(rows.name, Layout((pad,))))


# ------------------------------------------------------------------------------------------------------ blocks of rows


def _move_rows(s: Draft, c: Contraction, last: str, moved: list[str], size: int) -> tuple[str, str]:
    """Put all blocks under loops that go over blocks of rows: the loop over blocks, and the innermost of the loops."""
    all_loops = [b.name for b in find_block(s.func, last).bindings if isinstance(b, Var)]
    row, col = (all_loops[c.store.indices.index(it.var)] for it in (c.rows[-1], c.cols[-1]))
    outer = [n for n in all_loops if n not in (row, col)]
    rest = s.loop(row).extent % size
    block, inside = s.apply(Split(row, (None, size))).names
    # Workers share what is outside of the rest, too.
    few = rest and prod(s.loop(n).extent for n in outer) < _ENOUGH_HEADS
    around = [block, *outer] if few else [*outer, block]
    s.apply(Reorder((*around, inside, col)))
    for name in _consumers_first(s, moved, c):
        s.apply(ComputeAt(name, around[-1]))
    return block, around[-1]


def _cut_rest(s: Draft, block: str, rows: int, size: int) -> tuple[str, ...]:
    """Part the whole blocks of rows from what is left; what the names in either end with."""
    if not rows % size:
        return ("",)
    s.apply(LoopPartition(block, (rows // size,)))
    return ("_p0", "_p1")


def _share(s: Draft, inner: list[str]) -> None:
    """Divide the loops around the blocks of rows among workers."""
    nests = [
        n for n in top_level(s.func) if isinstance(n, For) and any(x.var.name in inner for x in loops(n))
    ]
    for nest in nests:
        outer, parts = chain_of(nest), 1
        taken: list[str] = []
        while outer and parts < _ENOUGH_HEADS:
            taken.append(outer[0].var.name)
            parts *= outer.pop(0).extent
        parallel_prefix(s, tuple(taken))


def _consumers_first(s: Draft, moved: list[str], c: Contraction) -> list[str]:
    """The order to move blocks in: each comes in front of its first consumer. What the contraction does not need is
    moved first, and so comes before it, to where its own producers will be.
    """
    now = try_contraction(find_block(s.func, c.block.name))  # its rows may have another layout than they had
    assert now is not None
    needed, wanted = {c.block.name}, {now.a.buffer}
    for b in reversed([find_block(s.func, n) for n in moved]):
        if any(n.buffer in wanted for n in walk_stmts(b) if isinstance(n, Store)):
            needed.add(b.name)
            wanted.update(ld.buffer for n in walk_stmts(b) for e in stmt_exprs(n) for ld in loads(e))
    return sorted(reversed(moved), key=lambda n: n in needed)


def _nest(s: Draft, p: _Gemm, suffix: str) -> ReductionNest:
    """A contraction with what takes its results up, in a part whose names end with `suffix`."""
    c = try_contraction(find_block(s.func, f"{p.block}{suffix}"))
    assert c is not None, p.block
    named = {it.var: f"{p.loops}_{n}{suffix}" for n, it in enumerate(c.block.iters)}
    row, col = named[c.rows[-1].var], named[c.cols[-1].var]
    reduce = tuple(named[it.var] for it in reduction_order(c))
    # Blocks of keys have a loop that other blocks share.
    outer = tuple(n for n in named.values() if n not in (row, col, *reduce) and s.func.loop(n) is not None)
    inner = (col, row) if p.plan.columns_outside else (row, col)
    return ReductionNest(c.block.name, f"{p.follower}{suffix}", (*outer, *inner), row, col, reduce)


# ------------------------------------------------------------------------------------------------------ blocks of keys


def _divide_keys(s: Draft, p: _Gemm, step: RollingUpdate) -> tuple[str, _Gemm]:
    """Take keys up in blocks: the loop over them, and the GEMM with one of them."""
    nest = _nest(s, p, "")
    s.apply(Reorder((*nest.outside, *nest.reduce)))
    result = find_block(s.func, p.block).store
    s.apply(SetScope(result.buffer.name, Scope.GLOBAL))  # it is scaled, and added to, from block to block
    s.apply(step)
    s.apply(SetScope(step.part, Scope.REGISTER))
    over = s.loop(step.loop)
    for block in list(blocks(over)):
        reduce = [b for it, b in zip(block.iters, block.bindings, strict=True) if it.kind is IterKind.REDUCE]
        if block.init is not None and over.var in reduce:
            s.apply(DecomposeReduction(block.name, step.loop))
    return step.loop, _Gemm(step.part, p.loops, p.block, p.plan)


# --------------------------------------------------------------------------------------------------------- single rows


def _side_by_side(body: Stmt, names: Container[str]) -> list[list[str]]:
    """Those of the blocks that have a statement of `body` for themselves, in runs without others between."""
    runs: list[list[str]] = [[]]
    for stmt in body.stmts if isinstance(body, Seq) else (body,):
        if isinstance(stmt, If):
            runs += [*_side_by_side(stmt.then, names), []]
            continue
        found = [b.name for b in blocks(stmt)]
        if len(found) == 1 and found[0] in names:
            runs[-1].append(found[0])
        else:
            runs.append([])
    return [r for r in runs if r]


def _schedule_body(s: Draft, loop: str, accumulators: int, target: Target) -> None:
    """Schedule the blocks that have a statement of the loop's body for themselves."""
    for run in _side_by_side(s.loop(loop).body, {b.name for b in blocks(s.loop(loop).body)}):
        _schedule_rows(s, run, accumulators, target)


def _schedule_rows(s: Draft, run: list[str], accumulators: int, target: Target) -> None:
    """What happens to rows in one place: blocks side by side share their loop over rows."""
    shared = len(run) > 1 and s.attempt(Merge(tuple(_row_loop(s, n) for n in run)))
    for name in run:
        block = find_block(s.func, name)
        if shared or block.is_reduction:
            vectorize_row(s, name, accumulators, target)
        else:
            schedule_elements(s, name, target, is_shared=False)


def _own_loops(s: Draft, block: Block) -> list[For]:
    return [n for n in loops_above(s.func, block) if all(b is block for b in blocks(n))]


def _row_loop(s: Draft, name: str) -> str:
    """The loop over rows, which are the last dimension but one of all that is between the contractions."""
    block = find_block(s.func, name)
    own, store = _own_loops(s, block), block.body
    if isinstance(store, Store) and len(store.indices) > 1:
        bound: dict[Expr, Expr] = {it.var: e for it, e in zip(block.iters, block.bindings, strict=True)}
        used = free_vars(bound.get(store.indices[-2], store.indices[-2]))
        found = [n.var.name for n in own if n.var in used]
        if len(found) == 1:
            return found[0]
    raise ScheduleError(f"{name} has no loop over rows")


def schedule_rows_apart(s: Draft, chain: AttentionChain, accumulators: int, target: Target) -> None:
    """Schedule what is between contractions that are not scheduled together: all rows, shared by workers."""
    for run in _side_by_side(s.func.body, chain.between):
        rows = [_row_loop(s, n) for n in run]
        if len(run) < 2 or not s.attempt(Merge(tuple(rows))):
            continue
        block = find_block(s.func, run[0])
        above = [n.var.name for n in loops_above(s.func, block)]
        shared = tuple(above[: above.index(rows[0]) + 1])
        parts = s.apply(Fuse(shared)).name if len(shared) > 1 else rows[0]
        size = part_size(s.loop(parts).extent)
        if size > 1:
            parts = s.apply(Split(parts, (None, size))).names[0]
        if is_worth_sharing(target.lanes(4), *(find_block(s.func, n) for n in run)):
            s.apply(Parallel(parts))
        for name in run:
            vectorize_row(s, name, accumulators, target)
